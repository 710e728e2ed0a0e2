"""The lab's settings as options. Name, type, default and help come from ``Settings`` itself, so they cannot drift."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, get_type_hints

from cyclopts import Group, Parameter, Token

from ..lab.tasks.catalogue import TASKS
from ..lab.tasks.nets import NETS
from ..lab.train.optimizers import OPTIMIZERS
from ..lab.train.settings import HARDWARE, READ_ONLY, Settings

LEARNING = Group("Settings", help="Where you give none: what suits the task, else the default shown.", sort_key=1)
PLACE = Group("Where and how fast it runs", help="No influence on what is learnt.", sort_key=2)
NAMES: dict[str, Iterable[str]] = {"task": TASKS, "model": NETS, "optimizer": OPTIMIZERS}


@dataclass(frozen=True)
class Answer:
    """What a command ends with: an exit code, and what a machine reads where it asked for JSON."""

    code: int = 0
    plain: dict[str, Any] | None = None


def field_docs(cls: type) -> dict[str, str]:
    """The strings under a class's fields, which Python itself throws away.

    >>> field_docs(Settings)["eval_every"]
    'Test after every so many epochs, and after the last.'
    """
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    docs = {}
    for entry, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name):
            text = after.value if isinstance(after, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                docs[entry.target.id] = " ".join(text.value.split())
    return docs


def whole(kind: Any, tokens: Sequence[Token]) -> int:
    """A whole number as it was typed: cyclopts itself would make 2 of 2.7."""
    del kind
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"expected a whole number; got {tokens[0].value}.") from None


def _given(without: frozenset[str] = frozenset()) -> Any:
    """A dict with those settings that were given."""
    docs, hints = field_docs(Settings), get_type_hints(Settings)
    options = {}
    for entry in fields(Settings):
        if entry.name in (*without, *READ_ONLY):
            continue
        names = f"Here: {', '.join(NAMES[entry.name])}." if entry.name in NAMES else ""
        parameter = Parameter(
            help=f"{docs.get(entry.name, '')} {names}".strip(),
            group=PLACE if entry.name in HARDWARE and entry.name != "data" else LEARNING,
            show_default=_shown(entry.default),
            consume_multiple=isinstance(entry.default, tuple),
            converter=whole if hints[entry.name] is int else None,
            negative_iterable="",
        )
        options[entry.name] = Annotated[hints[entry.name], parameter]
    return TypedDict("Given", options, total=False)  # type: ignore[operator]


def _shown(default: Any) -> str:
    if isinstance(default, tuple):
        return " ".join(map(str, default))
    return "none" if default == "" else str(default)


if TYPE_CHECKING:
    Given = dict[str, Any]
    Shared = dict[str, Any]
    Hardware = dict[str, Any]
else:
    Given = _given()
    Shared = _given(frozenset({"method", "steps"}))
    """Without what a comparison sets itself."""
    Hardware = _given(frozenset(entry.name for entry in fields(Settings)) - {*HARDWARE, "amp"})

WHOLE = Parameter(name="*")
"""The options of a dict, without a prefix."""
Json = Annotated[bool, Parameter(negative="", show_default=False, help="Print JSON on stdout, and nothing else there.")]
Root = Annotated[Path, Parameter(help="The folder that runs are kept in.")]
Name = Annotated[
    str, Parameter(show_default=False, help="The folder's name, below --runs; else the task and the time.")
]
Resume = Annotated[
    Path | None,
    Parameter(help="Go on with what is in this folder, by its settings; what says where it runs may be given."),
]
Board = Annotated[Path | None, Parameter(help="Also log for TensorBoard, below this folder.")]
Wandb = Annotated[
    str, Parameter(show_default=False, help="Also log for Weights & Biases, offline, under this project.")
]
Margin = Annotated[float | None, Parameter(show_default="0.3", help="Points that may be lost and still be lossless.")]
Level = Annotated[float | None, Parameter(show_default="0.95", help="How sure the intervals are, as a share.")]
