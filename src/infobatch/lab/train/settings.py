"""Everything that decides a run, in one frozen object of plain values."""

from __future__ import annotations

import ast
import difflib
import hashlib
import inspect
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from ... import methods
from ...checks import is_number, whole
from ...errors import InputError, message
from ...methods import variations
from ...methods.method import Method
from ...plan import GROWTHS, Growth
from ...selection import SELECTORS, budget
from .ideas import TRIALS, combine

Schedule = Literal["onecycle", "cosine", "step", "constant"]
Amp = Literal["none", "bf16", "fp16"]
Feed = Literal["auto", "resident", "loader"]


@dataclass(frozen=True)
class Settings:
    """One run. A record holds it whole, and ``Settings.of(record["settings"])`` makes the run again."""

    task: str = "digits"
    """A task of the lab, or MODULE:FUNCTION that makes one."""
    data: str = ""
    """The folder the task's files lie in; empty for tasks that bring their own."""
    method: str = "infobatch"
    """NAME or NAME:KEY=VALUE,..., as "infobatch:ratio=0.5,delta=0.875"; `infobatch methods` lists them."""
    compensate: Growth = "none"
    """What grows as steps get fewer: none, the rate (lr) or, as in the papers, the loss."""
    epochs: int = 40
    """How often a run on full data sees each sample."""
    ideas: str = ""
    """Variations of the loop that are on trial, as NAME+NAME."""
    steps: int = 0
    """Stop after so many steps, with the learning rate's schedule pressed into them; 0 for all epochs."""
    batch_size: int = 128
    """Samples a step."""
    model: str = ""
    """A net of the lab, timm:NAME, transformers:NAME, or task: the task's own. Without a name that one, else conv."""
    optimizer: str = "sgd"
    """By name; lars and lamb want pytorch_optimizer."""
    lr: float = 0.1
    """The learning rate, at its highest."""
    momentum: float = 0.9
    """Of sgd and lars."""
    nesterov: bool = False
    """Nesterov's momentum, for sgd."""
    weight_decay: float = 5e-4
    """The weight decay; with adamw it is decoupled."""
    schedule: Schedule = "onecycle"
    """How the learning rate goes over the run."""
    warmup: float = 0.3
    """OneCycle: the share of the run in which the rate rises."""
    milestones: tuple[float, ...] = (0.3, 0.6, 0.8)
    """Step: the shares of the run after which the rate falls to a fifth."""
    label_smoothing: float = 0.0
    """Of the training loss; tests are without."""
    augment: bool = True
    """Random crop and flip, where the task has them."""
    amp: Amp = "none"
    """Automatic mixed precision; fp16 comes with a gradient scaler."""
    channels_last: bool = False
    """The memory format of images and nets; faster on most GPUs."""
    compile: bool = False
    """torch.compile for the net."""
    feed: Feed = "auto"
    """Where batches come from: the device's memory or a loader; auto takes the first where the data allow it."""
    graph: bool = True
    """On a GPU with resident data: the whole step as one CUDA graph."""
    workers: int = 0
    """Processes of the loader."""
    device: str = "auto"
    """As torch names it; auto takes a GPU where there is one."""
    threads: int = 0
    """CPU threads of torch; 0 leaves them as they are."""
    seed: int = 0
    """Decides the first weights, the plans, the order, crops and flips."""
    eval_every: int = 1
    """Test after every so many epochs, and after the last."""
    gallery: int = 12
    """How many of the most and least kept samples to show; 0 keeps them out of the record."""

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def of(cls, given: dict[str, Any], defaults: dict[str, Any] | None = None) -> Settings:
        """Settings from plain values: what is given, else the task's defaults, else those above."""
        known = [name for name, *_ in _kinds()]
        for name in [*given, *(defaults or {})]:
            if name not in known:
                raise InputError(message("a setting of the lab", repr(name), near(name, known)))
        merged = {**(defaults or {}), **given}
        if isinstance(merged.get("milestones"), list):
            merged["milestones"] = tuple(merged["milestones"])
        return cls(**merged)

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "milestones": list(self.milestones)}

    def but(self, **changes: Any) -> Settings:
        return replace(self, **changes)

    @property
    def grows(self) -> Growth:
        """What grows; with weights 1 no loss does.

        >>> Settings(method="infobatch", compensate="loss").grows, Settings(method="ucb", compensate="loss").grows
        ('loss', 'none')
        """
        return "none" if self.compensate == "loss" and not makes_up(self.method) else self.compensate

    @property
    def key(self) -> str:
        """Twelve characters that differ where any setting does."""
        return hashlib.sha256(json.dumps(self.plain(), sort_keys=True).encode()).hexdigest()[:12]

    def resumes(self, other: dict[str, Any]) -> bool:
        """Whether a run with the settings of a record or checkpoint may go on with these."""
        mine = self.plain()
        return other.keys() == mine.keys() and all(mine[key] == other[key] for key in mine if key not in HARDWARE)


HARDWARE = ("data", "feed", "graph", "workers", "device", "threads", "compile")
"""Settings that say where a run goes and how fast, not what it learns: a resumed run may take others."""


VARIATIONS = ("unbiased", "annealed", "class_floor", "noise_guard")
STATIC = "static."


@cache
def makes_up(method: str) -> bool:
    """Whether its weights make up for those left out, and so let the loss grow where that is asked for.

    >>> makes_up("infobatch:ratio=0.3"), makes_up("full"), makes_up("ucb")
    (True, False, False)
    """
    rule = _rule(method)
    return rule != "" and parse_method(rule).unbiased


@cache
def _rule(method: str) -> str:
    """What leaves samples out in its epochs, of a static selection what trains on it; "" where nothing does."""
    static = parse_static(method)
    name = method if static is None else static.then
    return "" if name == "full" else name


def as_before(method: str, ideas: str) -> str:
    """The ideas of a run from before a short last batch counted for less: there that was one more, if it was pruned.

    >>> as_before("infobatch", "average"), as_before("full", ""), as_before("static.el2n:share=0.3", "")
    ('average+whole_last', '', '')
    """
    return "+".join(filter(None, (ideas, "whole_last"))) if _rule(method) else ideas


def since(ideas: str) -> str:
    """The ideas of such a run but for that one.

    >>> since("average+whole_last"), since("whole_last")
    ('average', '')
    """
    return "+".join(name for name in ideas.split("+") if name != "whole_last")


def parse_method(text: str, labels: Tensor | None = None) -> Method:
    """A method from its text; ``labels`` are the classes of the training samples, for those that ask for them.

    >>> parse_method("infobatch:ratio=0.3")
    infobatch(ratio=0.3, delta=0.875)
    >>> parse_method("seta:unbiased=0.25,annealed=0.9")
    seta(ratio=0.1, groups=5, share=0.9, delta=0.875, unbiased=0.25, annealed=0.9)
    """
    name, rest = _name(text)
    known = {**TRIALS, **methods.METHODS}
    if name not in known:
        every = [*methods.METHODS, *(STATIC + each for each in SELECTORS)]
        plain, plus, grows = text.rpartition("+")
        is_label = plus and grows in GROWTHS
        remedy = f"The method is {plain}; in a run --compensate {grows} says what grows." if is_label else ""
        if name in every:
            remedy = "That one chooses once, before training: `infobatch train` and `compare` take it."
        raise InputError(message("a method", repr(name), remedy or near(name, every)))
    maker = known[name]
    classes = torch.zeros(1, dtype=torch.int64) if labels is None else labels
    defaults = {key: entry.default for key, entry in inspect.signature(maker).parameters.items()}
    own = {
        key: "" if key == "inner" else value for key, value in defaults.items() if key == "inner" or _is_plain(value)
    }
    given = _given(name, rest, own, dict.fromkeys(VARIATIONS, 0.5))
    asked = {key: given.pop(key) for key in VARIATIONS if key in given}
    if "labels" in defaults:
        given["labels"] = classes
    if "inner" in given:
        given["inner"] = parse_method(given["inner"], labels)
    method = maker(**given)
    for key, value in asked.items():
        vary = getattr(variations, key)
        method = vary(method, classes, value) if key == "class_floor" else vary(method, value)
    return method


def losses_alone(method: Method, size: int | None = None) -> bool:
    """Whether it needs nothing but each sample's loss, or besides it what it was given for just so many samples.

    >>> losses_alone(parse_method("infobatch")), losses_alone(parse_method("infobatch:class_floor=0.5"))
    (True, False)
    """
    return not method.needs and method.score == "loss" and method.size in (None, size)


@dataclass(frozen=True)
class Static:
    """A selector with its settings, and the method that trains on what it chose, if not all of it."""

    name: str
    settings: dict[str, Any]
    then: str


def parse_static(text: str) -> Static | None:
    """A static method from its text; None for any other.

    >>> parse_static("static.el2n:share=0.7,then=infobatch")
    Static(name='el2n', settings={'share': 0.7}, then='infobatch')
    """
    name, rest = _name(text)
    if not name.startswith(STATIC):
        return None
    name = name.removeprefix(STATIC)
    if name not in SELECTORS:
        raise InputError(message("a static method", repr(STATIC + name), near(name, SELECTORS)))
    parameters = inspect.signature(SELECTORS[name].choose).parameters
    own = {key: entry.default for key, entry in parameters.items() if _is_plain(entry.default) and key != "seed"}
    given = {"share": 0.7, **_given(STATIC + name, rest, {**own, "share": 0.7}, {"then": ""})}
    then = given.pop("then", "")
    if then:
        parse_method(then)
    budget.count(1000, given["share"])
    return Static(name, given, then)


def _name(text: str) -> tuple[str, str]:
    name, colon, rest = text.partition(":")
    if colon and not rest.strip():  # another text for the same method would be another method in every table
        raise InputError(message("settings after the colon, as NAME:KEY=VALUE", repr(text), f"Or {name} alone."))
    return name, rest


def _given(name: str, text: str, own: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """KEY=VALUE,KEY=VALUE as a dict; ``own`` and ``more`` are what is known, each with a value of its kind."""
    given: dict[str, Any] = {}
    for part in text.split(",") if text else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key not in (*own, *more) or not equals or not value:
            expected = f"settings of {name} as KEY=VALUE (it has {', '.join(own) or 'none'})"
            raise InputError(message(expected, repr(part), near(key, [*own, *more])))
        if key in given:
            raise InputError(message(f"each setting of {name} once", repr(text), f"Name {key} once."))
        try:
            given[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # what Python itself cannot read
            given[key] = value
        _check_kind(f"{key} of {name}", given[key], {**own, **more}[key])
    return given


def _check_kind(what: str, value: Any, like: Any) -> None:
    """Numbers where the default is one, and so on; their range is the method's to know."""
    if isinstance(like, float):
        good = type(value) in (int, float) and abs(value) <= MOST
    else:
        good = type(value) is type(like) and (type(value) is not int or abs(value) <= MANY)
    if not good:
        shown = f", as {like!r}" if like != "" else ""
        raise InputError(message(f"{what} as {type(like).__name__}{shown}", repr(value), "Nothing was started."))


def _is_plain(value: Any) -> bool:
    """A number or text, which can be said between commas."""
    return isinstance(value, (int, float, str))


def find_device(name: str) -> torch.device:
    """The device of that name; of ``auto`` the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # which "meta" has not
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(message("a device that is here", repr(name), f"torch says: {error}")) from error
    return device


def near(name: str, known: Iterable[str]) -> str:
    """Did you mean ...? Else, what there is."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
    return f"Did you mean {' or '.join(close)}?" if close else f"There are {', '.join(sorted(known))}."


_CHOICES: dict[str, tuple[str, ...]] = {
    "compensate": GROWTHS,
    "schedule": get_args(Schedule),
    "amp": get_args(Amp),
    "feed": get_args(Feed),
}
MOST, MANY = 1_000_000_000, 1_000_000
_AT_MOST = {"seed": 2**63 - 1, "threads": 1024, "workers": 1024}
_AT_LEAST: dict[str, float] = {
    "epochs": 1, "steps": 0, "batch_size": 1, "workers": 0, "threads": 0, "seed": 0, "eval_every": 1, "gallery": 0,
    "momentum": 0, "weight_decay": 0, "lr": 0,
}  # fmt: skip


def _check(settings: Settings) -> None:
    for name, plain, kinds in _kinds():
        value = cast(Any, getattr(settings, name))
        if type(plain) is int and type(value) is not int and whole(value) is not None:
            value = whole(value)  # of numpy, which a record in JSON could not hold
            object.__setattr__(settings, name, value)
        if type(value) not in kinds:
            expected = f"{name} as {kinds[-1].__name__}, as {plain!r}"
            raise InputError(message(expected, repr(value), "See docs/lab.md for all settings."))
        _check_value(name, value)
    for name in ("warmup", "label_smoothing"):
        if not 0 <= getattr(settings, name) < 1:
            raise InputError(message(f"{name} in [0, 1)", repr(getattr(settings, name)), "It is a share."))
    for share in settings.milestones:
        if not is_number(share) or not 0 <= share <= 1:
            raise InputError(message("milestones in [0, 1]", repr(share), "They are shares of the run."))
    if settings.nesterov and settings.optimizer == "sgd" and not settings.momentum:
        raise InputError(message("a momentum above 0 with nesterov", repr(settings.momentum), "0.9 is usual."))
    _check_method(settings.method)
    if combine(settings.ideas).grow_decay and settings.compensate != "loss":
        remedy = "With a growing rate the decay grows by itself: compensate=loss, or no decay."
        raise InputError(message("a growing loss, for the idea decay", f"compensate={settings.compensate}", remedy))


@cache
def _kinds() -> tuple[tuple[str, Any, tuple[type, ...]], ...]:
    """Of each setting its name, its default and the types it may have; once, for thousands of records."""
    return tuple(
        (entry.name, entry.default, (int, float) if isinstance(entry.default, float) else (type(entry.default),))
        for entry in fields(Settings)
    )


@cache
def _check_method(text: str) -> None:
    """Once a text: thousands of records have a few dozen methods."""
    if parse_static(text) is None:
        parse_method(text)


def _check_value(name: str, value: Any) -> None:
    if name in _CHOICES and value not in _CHOICES[name]:
        raise InputError(message(f"{name} as one of them", repr(value), near(value, _CHOICES[name])))
    most = _AT_MOST.get(name, MOST)
    if name in _AT_LEAST and not _AT_LEAST[name] <= value <= most:
        raise InputError(message(f"{name} from {_AT_LEAST[name]} to {most:,}", repr(value), "Nothing was started."))
