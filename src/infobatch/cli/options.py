"""Turn the lab's settings into options; name, type, default and help come from ``Settings`` itself."""

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

LEARNING_OPTIONS = Group(
    "Settings", help="A setting you leave out takes the task's default, or else the one shown.", sort_key=1
)
HARDWARE_OPTIONS = Group("Where and how fast it runs", help="These do not change what is learned.", sort_key=2)
NAMES: dict[str, Iterable[str]] = {"task": TASKS, "model": NETS, "optimizer": OPTIMIZERS}


@dataclass(frozen=True)
class Answer:
    """The result of a command: an exit code and, with --json, what to print."""

    code: int = 0
    plain: dict[str, Any] | None = None


def field_docs(cls: type) -> dict[str, str]:
    """Return the strings under the fields of a class, which Python does not keep.

    >>> field_docs(Settings)["eval_every"]
    'Test every this many epochs, and after the last.'
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


def parse_int(kind: Any, tokens: Sequence[Token]) -> int:
    """Parse a whole number strictly: cyclopts itself would turn 2.7 into 2."""
    del kind
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"expected a whole number; got {tokens[0].value}.") from None


def _given(without: frozenset[str] = frozenset()) -> Any:
    """Make the type of a dict that holds the settings given on the command line."""
    docs, hints = field_docs(Settings), get_type_hints(Settings)
    options = {}
    for entry in fields(Settings):
        if entry.name in (*without, *READ_ONLY):
            continue
        names = f"One of {', '.join(NAMES[entry.name])}." if entry.name in NAMES else ""
        parameter = Parameter(
            help=f"{docs.get(entry.name, '')} {names}".strip(),
            group=HARDWARE_OPTIONS if entry.name in HARDWARE and entry.name != "data" else LEARNING_OPTIONS,
            show_default=_show_default(entry.default),
            consume_multiple=isinstance(entry.default, tuple),
            converter=parse_int if hints[entry.name] is int else None,
            negative_iterable="",
        )
        options[entry.name] = Annotated[hints[entry.name], parameter]
    return TypedDict("Given", options, total=False)  # type: ignore[operator]


def _show_default(default: Any) -> str:
    if isinstance(default, tuple):
        return " ".join(map(str, default))
    return "not set" if default == "" else str(default)


if TYPE_CHECKING:
    Given = dict[str, Any]
    Shared = dict[str, Any]
    Hardware = dict[str, Any]
else:
    Given = _given()
    Shared = _given(frozenset({"method", "steps"}))
    """Without the settings that a comparison varies."""
    Hardware = _given(frozenset(entry.name for entry in fields(Settings)) - {*HARDWARE, "amp"})

FLAT = Parameter(name="*")
"""The options of a dict appear without a prefix."""
Json = Annotated[bool, Parameter(negative="", show_default=False, help="Print JSON on stdout, and nothing else.")]
Root = Annotated[Path, Parameter(help="The folder that holds all runs.")]
Name = Annotated[
    str, Parameter(show_default=False, help="The name of the folder below --runs; by default the task and the time.")
]
Resume = Annotated[
    Path | None,
    Parameter(help="Continue what is in this folder, with its settings; only those about hardware may change."),
]
Board = Annotated[Path | None, Parameter(help="Also log for TensorBoard, below this folder.")]
Wandb = Annotated[
    str, Parameter(show_default=False, help="Also log for Weights & Biases, offline, under this project.")
]
Margin = Annotated[
    float | None,
    Parameter(
        show_default="what the task states, else 0.3 points",
        help="How much of the metric a method may lose and still count as lossless, in its unit.",
    ),
]
Level = Annotated[
    float | None, Parameter(show_default="0.95", help="The confidence level of the intervals, as a share.")
]
