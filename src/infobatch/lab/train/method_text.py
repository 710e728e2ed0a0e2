"""Methods by their text, as in "infobatch:ratio=0.5,delta=0.875" or "static.el2n:share=0.7,then=infobatch"."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ... import methods
from ...errors import InputError, message
from ...methods import variations
from ...methods.method import Method
from ...selection import SELECTORS, budget
from ..format import suggest

VARIATIONS = ("unbiased", "annealed", "class_floor", "noise_guard")
"""Settings that every method accepts: each wraps the method in a variation of it."""
STATIC = "static."
"""What the name of a static method starts with."""
RETIRED_METHODS = frozenset({"one_walk", "ramp"})
"""Experiments that older records name. They can be read, not trained; research/ideas says what they were."""
SUFFIXES = ("none", "loss", "lr")
"""What may follow the "+" of a label: the value of ``compensate`` in current and in older records."""
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
    known = [*methods.METHODS, *(STATIC + each for each in SELECTORS)]
    without_suffix, plus, suffix = text.rpartition("+")
    if name in known:
        remedy = "A static method selects once, before training: use it with `infobatch train` or `compare`."
    elif name in RETIRED_METHODS:
        remedy = "That experiment was dropped: its records can be read, but it is no longer trained."
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


def parse_static(text: str) -> Static | None:
    """Parse the text of a static method; return None for any other method.

    Raises:
        InputError: If the selector or one of its settings is unknown or has the wrong type.

    >>> parse_static("static.el2n:share=0.7,then=infobatch")
    Static(name='el2n', settings={'share': 0.7}, then='infobatch')
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
    given = {"share": 0.7, **_parse_settings(STATIC + name, settings_text, {**own, "share": 0.7}, {"then": ""})}
    then = given.pop("then", "")
    if then:
        parse_method(then)
    budget.count_kept(1000, given["share"])
    return Static(name, given, then)


@cache
def check_method(text: str) -> None:
    """Raise InputError unless ``text`` is a method of today or of an older record.

    Cached: thousands of records share a few dozen methods.
    """
    if not is_retired(text) and parse_static(text) is None:
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
    """The method that prunes epochs: of a static method the one that trains on its subset; "" if none does."""
    static = None if is_retired(method) else parse_static(method)
    name = method if static is None else static.then
    return "" if name == "full" else name


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
