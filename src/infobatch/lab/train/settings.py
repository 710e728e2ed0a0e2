"""Everything that decides a run, in one frozen object of plain values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Any, Literal, cast, get_args

import torch

from ...checks import as_int, is_number
from ...errors import InputError, message
from ..format import suggest
from ..tasks.nets import check_net
from .method_text import NO_GROWING_RATE, check_method, is_retired, is_reweighted, parse_sieve, pruning_method

Compensate = Literal["none", "loss"]
Schedule = Literal["onecycle", "cosine", "poly", "step", "constant"]
Amp = Literal["none", "bf16", "fp16"]
FeedChoice = Literal["auto", "resident", "loader"]
CropPadding = Literal["zeros", "reflect"]

WHOLE_LAST = "whole_last"
"""The mark of older pruned runs in which a short last batch of an epoch counted as much as a full one."""


@dataclass(frozen=True)
class Settings:
    """The settings of one run. A record stores all of them, and ``Settings.from_record`` reads them back.

    Older records hold values that are no longer trained: a learning rate that grew (``compensate="lr"``), ``ideas``
    and two methods. Settings accept them, so that such records can be read and compared; ``check_trainable`` refuses
    them.

    >>> Settings(method="infobatch:ratio=0.3", epochs=20).but(seed=1).seed
    1
    """

    task: str = "digits"
    """A task of the lab, or MODULE:FUNCTION that returns one."""
    data: str = ""
    """The folder with the task's files; empty for tasks that need none."""
    method: str = "infobatch"
    """NAME or NAME:KEY=VALUE,..., as "infobatch:ratio=0.5,delta=0.875"; `infobatch methods` lists them."""
    compensate: Compensate = "none"
    """What makes up for fewer steps: none, or, as in the papers, a growing loss."""
    epochs: int = 40
    """How often a run on full data sees each sample."""
    ideas: str = ""
    """Experiments that an older record was made with, as NAME+NAME; for reading only, see research/ideas."""
    steps: int = 0
    """Stop after this many steps, with the learning-rate schedule compressed into them; 0 trains all epochs."""
    batch_size: int = 128
    """Samples per step."""
    model: str = ""
    """A net of the lab, timm:NAME, transformers:NAME, or task: the task's own. Empty: the task's own, else conv."""
    optimizer: str = "sgd"
    """The optimizer's name; lars and lamb need pytorch_optimizer."""
    lr: float = 0.1
    """The largest learning rate of the schedule."""
    momentum: float = 0.9
    """The momentum of sgd and lars."""
    nesterov: bool = False
    """Nesterov momentum, for sgd."""
    weight_decay: float = 5e-4
    """The weight decay; with adamw it is decoupled."""
    schedule: Schedule = "onecycle"
    """The learning-rate schedule; poly falls to 0 as (1 - t/T)^0.9, as in mmsegmentation."""
    warmup: float = 0.3
    """OneCycle: the share of the run during which the learning rate rises."""
    milestones: tuple[float, ...] = (0.3, 0.6, 0.8)
    """Step: the shares of the run after which the learning rate drops to a fifth."""
    cycle_momentum: bool = False
    """OneCycle: let the momentum, or the first beta, go from 0.95 to 0.85 and back, as by default in torch."""
    label_smoothing: float = 0.0
    """Label smoothing of the training loss; tests use none."""
    augment: bool = True
    """Random crops and flips, if the task defines them."""
    crop_padding: CropPadding = "zeros"
    """What random crops find beyond the edge of an image: black, or the image reflected."""
    amp: Amp = "none"
    """Automatic mixed precision; fp16 uses a gradient scaler."""
    channels_last: bool = False
    """Use the channels-last memory format; faster on most GPUs."""
    compile: bool = False
    """Compile the net with torch.compile."""
    feed: FeedChoice = "auto"
    """Where batches come from: device memory or a loader; auto uses device memory if the data are arrays."""
    graph: bool = True
    """Capture the training step as a CUDA graph, on a GPU with data in device memory."""
    workers: int = 0
    """Worker processes of the loader."""
    device: str = "auto"
    """A torch device; auto takes a GPU if there is one."""
    threads: int = 0
    """CPU threads of torch; 0 leaves them unchanged."""
    seed: int = 0
    """Decides the initial weights, the plans, the order, crops and flips."""
    eval_every: int = 1
    """Test every this many epochs, and after the last."""
    gallery: int = 12
    """How many of the most and least often kept samples to record; 0 records none."""

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def of(cls, given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Settings:
        """Build settings from plain values.

        Args:
            given: Values by name.
            defaults: The task's defaults, used for what ``given`` lacks; the class's own come last.

        Returns:
            The settings. They may be of an older record: see ``check_trainable``.

        Raises:
            InputError: If a name is unknown or a value is not allowed.
        """
        merged = {**(defaults or {}), **given}
        known = [name for name, *_ in _types()]
        for name in merged:
            if name not in known:
                raise InputError(message("a setting of the lab", repr(name), suggest(name, known)))
        if isinstance(merged.get("milestones"), list):
            merged["milestones"] = tuple(merged["milestones"])
        return cls(**merged)

    @classmethod
    def from_record(cls, start: Mapping[str, Any]) -> Settings:
        """Read the settings of a recorded run, of any format.

        Args:
            start: The ``start`` fact of the record.

        Returns:
            The settings, with what older formats left implicit written out.

        Raises:
            InputError: If a name is unknown or a value is not allowed.
        """
        given = dict(start["settings"])
        method = given.get("method", "")
        if start.get("format") == 1:  # in which a short last batch counted as a full one
            given["ideas"] = with_whole_last(method, given.get("ideas", ""))
        if given.get("compensate") == "auto":  # an older default: the learning rate grew where the loss could
            given["compensate"] = "lr" if is_reweighted(method) else "none"
        return cls.of(given)

    def check_trainable(self) -> None:
        """Refuse settings that only older records may have, and a proxy that does not exist.

        Raises:
            InputError: If the learning rate is to grow, if ``ideas`` or the method is no longer part of the lab, or if
                a sieve names an unknown net.
        """
        if self.compensate not in get_args(Compensate):
            raise InputError(message("compensate none or loss", repr(self.compensate), NO_GROWING_RATE))
        if self.ideas:
            remedy = "These experiments were dropped: their records can be read, but they are no longer trained."
            raise InputError(message("no ideas", repr(self.ideas), remedy))
        if is_retired(self.method):
            remedy = "That experiment was dropped: its records can be read, but it is no longer trained."
            raise InputError(message("a method of the lab", repr(self.method), remedy))
        sieved = parse_sieve(self.method)
        if sieved is not None and sieved.net not in ("", "task"):
            check_net(sieved.net)  # before the other runs of a comparison are trained

    def plain(self) -> dict[str, Any]:
        """Return the settings as values that JSON can hold."""
        return {**asdict(self), "milestones": list(self.milestones)}

    def but(self, **changes: Any) -> Settings:
        """Return a copy with these settings changed."""
        return replace(self, **changes)

    @property
    def grows(self) -> str:
        """What grew or grows in pruned epochs: "none", "loss", or in older records "lr".

        A loss grows only if the method reweights the kept samples.

        >>> Settings(method="infobatch", compensate="loss").grows, Settings(method="ucb", compensate="loss").grows
        ('loss', 'none')
        """
        return "none" if self.compensate == "loss" and not is_reweighted(self.method) else self.compensate

    @property
    def key(self) -> str:
        """Twelve characters that differ if any setting does."""
        return hashlib.sha256(json.dumps(self.plain(), sort_keys=True).encode()).hexdigest()[:12]

    def resumes(self, other: dict[str, Any]) -> bool:
        """True if a run with the settings of a record or checkpoint may be continued with these."""
        mine = self.plain()
        known = {**Settings().plain(), **other}  # a setting newer than the checkpoint had no effect then
        return known.keys() == mine.keys() and all(mine[key] == known[key] for key in mine if key not in HARDWARE)


HARDWARE = ("data", "feed", "graph", "workers", "device", "threads", "compile")
"""Settings that say where and how fast a run trains, not what it learns: a resumed run may change them."""
READ_ONLY = ("ideas",)
"""Settings that only older records have; the command line does not offer them."""


def with_whole_last(method: str, ideas: str) -> str:
    """Add ``whole_last`` to the ideas of a run, unless it prunes no epoch.

    >>> with_whole_last("infobatch", "average"), with_whole_last("full", ""), with_whole_last("static.el2n", "")
    ('average+whole_last', '', '')
    """
    return "+".join(filter(None, (ideas, WHOLE_LAST))) if pruning_method(method) else ideas


def without_whole_last(ideas: str) -> str:
    """Remove ``whole_last`` from the ideas of a run.

    >>> without_whole_last("average+whole_last"), without_whole_last("whole_last")
    ('average', '')
    """
    return "+".join(name for name in ideas.split("+") if name != WHOLE_LAST)


def find_device(name: str) -> torch.device:
    """Return the device of that name; for ``auto`` a GPU if there is one.

    Raises:
        InputError: If torch cannot put a tensor on that device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # "meta" makes a tensor without a value
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(message("an available device", repr(name), f"torch says: {error}")) from error
    return device


_CHOICES: dict[str, tuple[str, ...]] = {
    "compensate": ("none", "loss", "lr"),  # lr in older records
    "schedule": get_args(Schedule),
    "amp": get_args(Amp),
    "feed": get_args(FeedChoice),
    "crop_padding": get_args(CropPadding),
}
LARGEST = 1_000_000_000
_LARGEST = {"seed": 2**63 - 1, "threads": 1024, "workers": 1024}
_SMALLEST: dict[str, float] = {
    "epochs": 1, "steps": 0, "batch_size": 1, "workers": 0, "threads": 0, "seed": 0, "eval_every": 1, "gallery": 0,
    "momentum": 0, "weight_decay": 0, "lr": 0,
}  # fmt: skip


def _check(settings: Settings) -> None:
    for name, default, types in _types():
        value = cast(Any, getattr(settings, name))
        if type(default) is int and type(value) is not int and as_int(value) is not None:
            value = as_int(value)  # a numpy integer, which JSON cannot hold
            object.__setattr__(settings, name, value)
        if type(value) not in types:
            expected = f"{name} as {types[-1].__name__}, for example {default!r}"
            raise InputError(message(expected, repr(value), "See docs/lab.md for all settings."))
        _check_value(name, value)
    for name in ("warmup", "label_smoothing"):
        if not 0 <= getattr(settings, name) < 1:
            raise InputError(message(f"{name} in [0, 1)", repr(getattr(settings, name)), "It is a share."))
    for share in settings.milestones:
        if not is_number(share) or not 0 <= share <= 1:
            raise InputError(message("milestones in [0, 1]", repr(share), "They are shares of the run."))
    if settings.cycle_momentum and settings.schedule != "onecycle":
        remedy = "Other schedules leave the momentum as it is: leave cycle_momentum out."
        raise InputError(message("schedule onecycle with cycle_momentum", repr(settings.schedule), remedy))
    if settings.nesterov and settings.optimizer == "sgd" and not settings.momentum:
        raise InputError(message("a momentum above 0 with nesterov", repr(settings.momentum), "0.9 is common."))
    check_method(settings.method)


@cache
def _types() -> tuple[tuple[str, Any, tuple[type, ...]], ...]:
    """Name, default and allowed types of each setting; cached, since thousands of records are checked."""
    return tuple(
        (entry.name, entry.default, (int, float) if isinstance(entry.default, float) else (type(entry.default),))
        for entry in fields(Settings)
    )


def _check_value(name: str, value: Any) -> None:
    if name in _CHOICES and value not in _CHOICES[name]:
        raise InputError(message(f"a known {name}", repr(value), suggest(value, _CHOICES[name])))
    largest = _LARGEST.get(name, LARGEST)
    if name in _SMALLEST and not _SMALLEST[name] <= value <= largest:
        expected = f"{name} from {_SMALLEST[name]} to {largest:,}"
        raise InputError(message(expected, repr(value), "Nothing was started."))
