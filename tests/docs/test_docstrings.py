"""Public functions and classes explain every argument and show an example, which test_docs.py runs."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import infobatch
from infobatch import adapters, methods, selection, sieve, testing, variations

NAMED = {f"infobatch.{name}": getattr(infobatch, name) for name in infobatch.__all__}
PUBLIC: dict[str, Callable[..., Any]] = {
    **{name: one for name, one in NAMED.items() if inspect.isfunction(one)},
    **{f"infobatch.{one.__name__}": one for one in (infobatch.InfoBatch, infobatch.Pruned, infobatch.DataLoader)},
    "infobatch.Sieve": infobatch.Sieve,
    **{
        f"adapters.{name}": one
        for name, one in vars(adapters).items()
        if name in adapters.__all__ and inspect.isfunction(one)
    },
    **{f"methods.{name}": getattr(methods, name) for name in (*methods.METHODS, "static", "register")},
    **{
        f"variations.{name}": one
        for name, one in vars(variations).items()
        if inspect.isfunction(one) and "method" in one.__annotations__ and one.__module__ == variations.__name__
    },
}


TORCHS = set(inspect.signature(infobatch.DataLoader).parameters) - {"dataset", "with_indices"}
"""The arguments of torch's own loader."""


CLASSES = {
    f"{module.__name__}.{name}": one
    for module in (infobatch, adapters, methods, selection, sieve, testing)
    for name, one in ((name, getattr(module, name)) for name in module.__all__)
    if inspect.isclass(one)
}
INTEGRATIONS = {
    "accelerate.Loader": "accelerate",
    "accelerate.Scheduler": "accelerate",
    "dcp.Sharded": "torch",
    "lightning.Pruning": "lightning",
    "transformers.PrunedTrainer": "transformers",
}
"""By class: what it needs."""


def find_class(name: str) -> type:
    if name in CLASSES:
        return CLASSES[name]
    pytest.importorskip(INTEGRATIONS[name])
    module, _, attribute = name.partition(".")
    return getattr(importlib.import_module(f"infobatch.integrations.{module}"), attribute)


def methods_of(cls: type) -> dict[str, Callable[..., Any]]:
    """Return the public methods and properties that a class has from this package.

    Those that another library defines are explained there, such as the hooks of a callback.
    """
    ours = [base for base in cls.__mro__ if base.__module__.partition(".")[0] == "infobatch"]
    theirs = {name for base in cls.__mro__ if base not in ours for name in vars(base)}
    found: dict[str, Callable[..., Any]] = {}
    for base in ours:
        for name, one in vars(base).items():
            is_field = name in inspect.get_annotations(base)
            if name.startswith("_") or name in theirs or is_field:
                continue
            function = getattr(one, "fget", None) or getattr(one, "func", None) or inspect.unwrap(getattr(cls, name))
            if inspect.isroutine(function):
                found.setdefault(name, function)
    return found


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


@pytest.mark.parametrize("name", [*CLASSES, *INTEGRATIONS])
def test_every_public_method_is_explained_with_its_arguments(name: str) -> None:
    missing = {}
    for method, function in methods_of(find_class(name)).items():
        doc = inspect.getdoc(function) or ""
        parameters = set(inspect.signature(function).parameters) - {"self", "cls"}
        if not doc or parameters - explained(doc):
            missing[method] = sorted(parameters - explained(doc))
    assert missing == {}


@pytest.mark.parametrize(
    "name", ["infobatch.Paced", "infobatch.Plan", "infobatch.testing.Training", *INTEGRATIONS], ids=str
)
def test_there_is_an_example_of_the_class(name: str) -> None:
    assert ">>> " in (inspect.getdoc(find_class(name)) or "")


@pytest.mark.parametrize("name", ["infobatch.Paced", *INTEGRATIONS])
def test_every_argument_of_the_class_is_explained(name: str) -> None:
    cls = find_class(name)
    assert set(inspect.signature(cls).parameters) - {"args", "kwargs"} <= explained(inspect.getdoc(cls) or "")


EXAMPLES = [
    (infobatch.Pruned, {"update", "skip", "hidden", "observe", "plan", "to", "full", "state_dict", "load_state_dict"}),
    (infobatch.DataLoader, {"read_ahead", "count_batches", "seed_workers", "state_dict", "load_state_dict"}),
    (infobatch.Paced, {"step", "get_last_lr", "state_dict", "load_state_dict"}),
]


@pytest.mark.parametrize(("cls", "names"), EXAMPLES)
def test_what_a_loop_calls_has_an_example_or_names_the_method_with_one(cls: type, names: set[str]) -> None:
    docs = {name: inspect.getdoc(getattr(cls, name)) or "" for name in names}
    shown = {name for name, doc in docs.items() if ">>> " in doc}
    referring = {
        name
        for name, doc in docs.items()
        if (match := re.search(r"``(\w+)`` has an example|example of ``(\w+)``", doc)) and {*match.groups()} & shown
    }
    assert shown | referring == names


def test_the_reader_of_methods() -> None:
    class Theirs:
        def hook(self) -> None: ...

    class Ours(Theirs):
        field: int = 0

        def hook(self) -> None: ...

        def own(self) -> None: ...

        @classmethod
        def make(cls) -> None: ...

        @property
        def fact(self) -> int: ...

        def _private(self) -> None: ...

    Ours.__module__ = "infobatch.made"
    assert set(methods_of(Ours)) == {"own", "make", "fact"}


def test_the_reader_of_args() -> None:
    doc = "First.\n\nArgs:\n    one: It.\n        More: of it.\n    two, three: Both.\n\nReturns:\n    four: no.\n"
    assert explained(doc) == {"one", "two", "three"}
