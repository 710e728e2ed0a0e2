"""Methods by their text, as in "infobatch:ratio=0.5", "static.el2n:share=0.7,then=infobatch" or "sieve.hardest"."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ... import methods
from ...checks import check_count
from ...errors import InputError, message
from ...methods import variations
from ...methods.method import Method
from ...selection import SELECTORS, budget
from ...sieve import SIEVE_METHODS, SieveMethod
from ..format import suggest

VARIATIONS = ("averaged", "unbiased", "annealed", "class_floor", "noise_guard")
"""Settings that every method accepts: each wraps the method in a variation of it."""
STATIC = "static."
"""What the name of a static method starts with."""
PER_RUN = frozenset({"error_norms", "grad_norms"})
"""Evidence that each run of a proxy adds to; static methods that need it accept ``runs``."""
SIEVE = "sieve."
"""What the name of a method starts with that chooses inside the batch."""
LOOKS = ("proxy", "own")
"""What a sieve may look with: a small network that trains beside the model, or the model itself."""
PUBLISHED_LOOKS = {"selective_backprop": "own"}
"""Looks that belong to a published method; all others look with a proxy unless the text names another look."""
SIEVE_SETTINGS: dict[str, Any] = {"look": "proxy", "net": "resnet8", "every": 4, "then": "infobatch"}
"""Settings that every sieve with a look accepts, each with a value of its type."""
NOT_BY_TEXT = {
    "rho_loss": "a reference network, trained beforehand on other data",
    "es": "the remembered losses of another method",
    "tokens": "a function that says which tokens count",
}
"""What a text cannot give to these methods of ``infobatch.sieve``."""
RETIRED_METHODS = frozenset({"one_walk", "ramp"})
"""Experiments that older records name. They can be read, not trained; research/ideas says what they were."""
SUFFIXES = ("none", "loss", "lr")
"""What may follow the "+" of a label: the value of ``compensate`` in current and in older records."""
NO_GROWING_RATE = "Growing the learning rate was dropped: choose a larger lr, or compensate=loss or none."
"""What to do instead of training as in older records with ``compensate="lr"``."""
LARGEST_FLOAT, LARGEST_INT = 1_000_000_000, 1_000_000


def parse_method(text: str, labels: Tensor | None = None) -> Method:
    """Build a method from its text.

    Args:
        text: NAME or NAME:KEY=VALUE,KEY=VALUE.
        labels: The class of each training sample, for methods that need it.

    Returns:
        The method.

    Raises:
        InputError: If the name or a setting is unknown or has the wrong type.

    >>> parse_method("infobatch:ratio=0.3")
    infobatch(ratio=0.3, delta=0.875)
    >>> parse_method("seta:unbiased=0.25,annealed=0.9")
    seta(ratio=0.1, groups=5, share=0.9, delta=0.875, unbiased=0.25, annealed=0.9)
    """
    name, settings_text = _split(text)
    if name not in methods.METHODS:
        raise _unknown_method(name, text)
    maker = methods.METHODS[name]
    classes = torch.zeros(1, dtype=torch.int64) if labels is None else labels
    defaults = {key: entry.default for key, entry in inspect.signature(maker).parameters.items()}
    own = {
        key: "" if key == "inner" else value
        for key, value in defaults.items()
        if key == "inner" or _is_number_or_text(value)
    }
    given = _parse_settings(name, settings_text, own, dict.fromkeys(VARIATIONS, 0.5))
    varied = {key: given.pop(key) for key in VARIATIONS if key in given}
    if "labels" in defaults:
        given["labels"] = classes
    if "inner" in given:
        given["inner"] = parse_method(given["inner"], labels)
    method = maker(**given)
    for key, value in varied.items():
        vary = getattr(variations, key)
        method = vary(method, classes, value) if key == "class_floor" else vary(method, value)
    return method


def _unknown_method(name: str, text: str) -> InputError:
    known = [*methods.METHODS, *(STATIC + each for each in SELECTORS), *(SIEVE + each for each in SIEVE_METHODS)]
    without_suffix, plus, suffix = text.rpartition("+")
    if name.startswith(SIEVE) and name in known:
        remedy = (
            "A sieve chooses inside each batch: use it with `infobatch train` or `compare`, and name this other method "
            f"in its settings, as {name}:then=infobatch."
        )
    elif name in known:
        remedy = "A static method selects once, before training: use it with `infobatch train` or `compare`."
    elif name in RETIRED_METHODS:
        remedy = "That experiment was dropped: its records can be read, but it is no longer trained."
    elif plus and suffix == "lr":
        remedy = NO_GROWING_RATE
    elif plus and suffix in SUFFIXES:
        remedy = f"The method is {without_suffix}; pass --compensate {suffix} for the rest."
    else:
        remedy = suggest(name, known)
    return InputError(message("a method", repr(name), remedy))


@dataclass(frozen=True)
class Static:
    """A selector with its settings, and the method that trains on the subset ("" for all of it)."""

    name: str
    settings: dict[str, Any]
    then: str
    runs: int = 0
    """Proxies whose scores are averaged; 0 for as many as by default."""


def parse_static(text: str) -> Static | None:
    """Parse the text of a static method; return None for any other method.

    Raises:
        InputError: If the selector or one of its settings is unknown or has the wrong type.

    >>> parse_static("static.el2n:share=0.7,then=infobatch")
    Static(name='el2n', settings={'share': 0.7}, then='infobatch', runs=0)
    >>> parse_static("static.el2n:runs=20").runs
    20
    """
    name, settings_text = _split(text)
    if not name.startswith(STATIC):
        return None
    name = name.removeprefix(STATIC)
    if name not in SELECTORS:
        raise InputError(message("a static method", repr(STATIC + name), suggest(name, SELECTORS)))
    parameters = inspect.signature(SELECTORS[name].choose).parameters
    own = {
        key: entry.default for key, entry in parameters.items() if _is_number_or_text(entry.default) and key != "seed"
    }
    shared: dict[str, Any] = {"then": ""} | ({"runs": 20} if PER_RUN.intersection(SELECTORS[name].needs) else {})
    given = {"share": 0.7, **_parse_settings(STATIC + name, settings_text, {**own, "share": 0.7}, shared)}
    then, runs = given.pop("then", ""), given.pop("runs", None)
    if runs is not None:
        check_count(f"runs of {STATIC}{name}", runs, 1, "Leave it out for the default.")
    if then:
        parse_method(then)
    budget.count_kept(1000, given["share"])
    return Static(name, given, then, runs or 0)


@dataclass(frozen=True)
class Sieved:
    """A method that chooses inside the batch with its settings, what it looks with, and the memory method on top."""

    name: str
    settings: dict[str, Any]
    look: str
    """One of ``LOOKS``; "" if the method needs none."""
    net: str
    """The proxy's net; "" for a small relative of the model."""
    every: int
    """The proxy trains on every n-th batch."""
    then: str
    """The method that decides which samples an epoch uses; "" for all of them."""


def parse_sieve(text: str) -> Sieved | None:
    """Parse the text of a method that chooses inside the batch; return None for any other method.

    Raises:
        InputError: If the method or one of its settings is unknown, has the wrong type, or cannot be given by a text.

    >>> parse_sieve("sieve.hardest:keep=0.25,net=mlp16")
    Sieved(name='hardest', settings={'keep': 0.25}, look='proxy', net='mlp16', every=4, then='')
    """
    name, settings_text = _split(text)
    if not name.startswith(SIEVE):
        return None
    name = name.removeprefix(SIEVE)
    if name not in SIEVE_METHODS:
        known = [SIEVE + each for each in SIEVE_METHODS if each not in NOT_BY_TEXT]
        raise InputError(message("a method inside the batch", repr(SIEVE + name), suggest(SIEVE + name, known)))
    if name in NOT_BY_TEXT:
        remedy = "Build infobatch.Sieve in a training loop of yours."
        got = f"{SIEVE}{name}, which needs {NOT_BY_TEXT[name]}"
        raise InputError(message("a method that a text can describe", got, remedy))
    parameters = inspect.signature(SIEVE_METHODS[name]).parameters
    own = {
        key: entry.default
        for key, entry in parameters.items()
        if _is_number_or_text(entry.default) and key not in SIEVE_SETTINGS
    }
    needs_look = SIEVE_METHODS[name]().needs_look
    shared = SIEVE_SETTINGS if needs_look else {"then": SIEVE_SETTINGS["then"]}
    given = _parse_settings(SIEVE + name, settings_text, own, shared)
    look, net, every, then = (given.pop(key, None) for key in SIEVE_SETTINGS)
    look = look or (PUBLISHED_LOOKS.get(name, LOOKS[0]) if needs_look else "")
    if needs_look:
        _check_look(look, {"net": net, "every": every})
    if then:
        parse_method(then)
    make_sieve_method(name, given)
    return Sieved(name, given, look, net or "", SIEVE_SETTINGS["every"] if every is None else every, then or "")


def make_sieve_method(name: str, settings: Mapping[str, Any]) -> SieveMethod:
    """Build the method of a sieve; batches are (inputs, labels, ...)."""
    labels = {"labels": lambda batch: batch[1]} if settings.get("class_floor") else {}
    return SIEVE_METHODS[name](**settings, **labels)


def _check_look(look: str, of_proxy: Mapping[str, Any]) -> None:
    if look not in LOOKS:
        raise InputError(message(f"look as {' or '.join(LOOKS)}", repr(look), suggest(look, LOOKS)))
    if of_proxy["every"] is not None:
        check_count("every", of_proxy["every"], 1, "The proxy trains on every n-th batch.")
    given = [key for key, value in of_proxy.items() if value is not None]
    if look != "proxy" and given:
        got = f"{' and '.join(given)} with look={look}"
        raise InputError(message("settings of a proxy only with look=proxy", got, "Leave out one of them."))


@cache
def check_method(text: str) -> None:
    """Raise InputError unless ``text`` is a method of today or of an older record.

    Cached: thousands of records share a few dozen methods.
    """
    if not is_retired(text) and parse_static(text) is None and parse_sieve(text) is None:
        parse_method(text)


def is_retired(text: str) -> bool:
    """True if the method is an experiment that can only be read.

    >>> is_retired("ramp:ratio=0.4"), is_retired("infobatch")
    (True, False)
    """
    return text.partition(":")[0] in RETIRED_METHODS


@cache
def is_reweighted(method: str) -> bool:
    """True if the weights of the kept samples make up for the pruned ones, so that a loss can grow with them.

    >>> is_reweighted("infobatch:ratio=0.3"), is_reweighted("full"), is_reweighted("ucb")
    (True, False, False)
    """
    pruning = pruning_method(method)
    return pruning != "" and (is_retired(pruning) or parse_method(pruning).unbiased)


@cache
def pruning_method(method: str) -> str:
    """The method that prunes epochs: of a static method or a sieve the one named by ``then``; "" if none does."""
    outer = None if is_retired(method) else parse_static(method) or parse_sieve(method)
    name = method if outer is None else outer.then
    return "" if name == "full" else name


def is_sieve(method: str) -> bool:
    """True if the method chooses inside the batch.

    >>> is_sieve("sieve.lot:keep=0.7"), is_sieve("infobatch")
    (True, False)
    """
    return method.startswith(SIEVE)


def needs_losses_only(method: Method, size: int | None = None) -> bool:
    """True if a method works from each sample's loss alone, or was made for a data set of exactly ``size`` samples.

    >>> needs_losses_only(parse_method("infobatch")), needs_losses_only(parse_method("infobatch:class_floor=0.5"))
    (True, False)
    """
    extra = method.channels or method.observes_hidden
    return not extra and method.score == "loss" and method.size in (None, size)


def _split(text: str) -> tuple[str, str]:
    name, colon, settings_text = text.partition(":")
    if colon and not settings_text.strip():  # two texts for one method would be two rows of every table
        raise InputError(message("settings after the colon, as NAME:KEY=VALUE", repr(text), f"Or {name} alone."))
    return name, settings_text


def _parse_settings(name: str, text: str, own: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    """Parse KEY=VALUE,KEY=VALUE; ``own`` and ``shared`` map each known key to a value of its type."""
    known = {**own, **shared}
    given: dict[str, Any] = {}
    for item in text.split(",") if text else ():
        key, equals, value = (piece.strip() for piece in item.partition("="))
        if key not in known or not equals or not value:
            expected = f"settings of {name} as KEY=VALUE (it has {', '.join(own) or 'none'})"
            raise InputError(message(expected, repr(item), suggest(key, known)))
        if key in given:
            raise InputError(message(f"each setting of {name} once", repr(text), f"Name {key} once."))
        try:
            given[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # not a Python literal: text
            given[key] = value
        _check_type(f"{key} of {name}", given[key], known[key])
    return given


def _check_type(what: str, value: Any, example: Any) -> None:
    """Require the type of the default; the method itself checks the range."""
    if isinstance(example, float):
        is_valid = type(value) in (int, float) and abs(value) <= LARGEST_FLOAT
    else:
        is_valid = type(value) is type(example) and (type(value) is not int or abs(value) <= LARGEST_INT)
    if not is_valid:
        shown = f", for example {example!r}" if example != "" else ""
        raise InputError(message(f"{what} as {type(example).__name__}{shown}", repr(value), "Nothing was started."))


def _is_number_or_text(value: Any) -> bool:
    """True for values that can be written between commas."""
    return isinstance(value, (int, float, str))
