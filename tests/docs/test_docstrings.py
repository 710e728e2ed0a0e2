"""Public functions and classes explain every argument and show an example, which test_docs.py runs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import infobatch
from infobatch import methods, variations

NAMED = {f"infobatch.{name}": getattr(infobatch, name) for name in infobatch.__all__}
PUBLIC: dict[str, Callable[..., Any]] = {
    **{name: one for name, one in NAMED.items() if inspect.isfunction(one)},
    **{f"infobatch.{one.__name__}": one for one in (infobatch.InfoBatch, infobatch.Pruned, infobatch.DataLoader)},
    "infobatch.Sieve": infobatch.Sieve,
    **{f"methods.{name}": getattr(methods, name) for name in (*methods.METHODS, "static", "register")},
    **{
        f"variations.{name}": one
        for name, one in vars(variations).items()
        if inspect.isfunction(one) and "method" in one.__annotations__ and one.__module__ == variations.__name__
    },
}


TORCHS = set(inspect.signature(infobatch.DataLoader).parameters) - {"dataset", "with_indices"}
"""The arguments of torch's own loader."""


def explained(doc: str) -> set[str]:
    """Return the names that the Args of a docstring explain."""
    _, _, rest = doc.partition("\nArgs:\n")
    section = re.split(r"\n(?=\S)", rest, maxsplit=1)[0]
    heads = re.findall(r"^    (\w[\w, ]*):", section, re.MULTILINE)
    return {name for head in heads for name in head.split(", ")}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_argument_is_explained(name: str) -> None:
    one = PUBLIC[name]
    others = TORCHS if one is infobatch.DataLoader else set()
    assert set(inspect.signature(one).parameters) - others <= explained(inspect.getdoc(one) or "")


@pytest.mark.parametrize("name", PUBLIC)
def test_there_is_an_example(name: str) -> None:
    doc = inspect.getdoc(PUBLIC[name]) or ""
    assert ">>> " in doc or "Example::" in doc


@pytest.mark.parametrize("name", [name for name, one in PUBLIC.items() if inspect.isfunction(one)])
def test_what_is_returned_is_said(name: str) -> None:
    doc = inspect.getdoc(PUBLIC[name]) or ""
    returns = inspect.signature(PUBLIC[name]).return_annotation
    assert returns in (None, "None") or doc.startswith("Return ") or "\nReturns:\n" in doc


def test_the_reader_of_args() -> None:
    doc = "First.\n\nArgs:\n    one: It.\n        More: of it.\n    two, three: Both.\n\nReturns:\n    four: no.\n"
    assert explained(doc) == {"one", "two", "three"}
