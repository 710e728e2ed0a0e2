"""Name the rows of a comparison for people. Records and JSON keep the labels that ``grouping`` gives them.

>>> rows = ["full", "infobatch", "full, cost of infobatch"]
>>> [name_among(rows)(row) for row in rows]
['full', 'infobatch', 'shorter run']
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .comparison import Comparison, Row
    from .tuning import AtBest

SHORTER_RUN = "shorter run"
"""What a shorter run is called wherever a person reads."""
OLDER_LAST_BATCH = "older last batch"
METHOD_OF_THE_PAPER = "infobatch"

_SHORTER = re.compile(
    r"(?P<stem>full(?P<rate>\+lr)?(?: (?P<ideas>\S+))?, (?:(?:cost|steps) of (?P<owner>.+?)|(?P<steps>\d+) steps))"
    r"(?P<settings> · .*)?"
)
_GROWS = {"loss": "loss grows", "lr": "learning rate grows"}


def name_shorter_run(label: str, *, alone: bool = False) -> str:
    """Name a shorter run; labels of other rows are returned unchanged.

    Args:
        label: The label of a row.
        alone: True if no other shorter run is shown, so that it needs no number of steps.

    Older labels say "steps of" in place of "cost of".

    >>> name_shorter_run("full, cost of infobatch · lr=0.1"), name_shorter_run("full, 900 steps", alone=True)
    ('shorter run (cost of infobatch) · lr=0.1', 'shorter run')
    >>> name_shorter_run("full, steps of infobatch")
    'shorter run (cost of infobatch)'
    """
    found = _SHORTER.fullmatch(label)
    if found is None:
        return label
    length = f"cost of {found['owner']}" if found["owner"] else f"{int(found['steps']):,} steps"
    details = [] if alone else [length, _GROWS["lr"] if found["rate"] else "", found["ideas"] or ""]
    described = ", ".join(filter(None, details))
    return f"{SHORTER_RUN}{f' ({described})' if described else ''}{found['settings'] or ''}"


def older_label(label: str) -> str:
    """Return the label that earlier versions gave a row.

    >>> older_label("full, cost of infobatch")
    'full, steps of infobatch'
    """
    return label.replace(", cost of ", ", steps of ")


def name_among(labels: Iterable[str]) -> Callable[[str], str]:
    """Return a function that names rows shown together: a single kind of shorter run needs no number of steps."""
    kinds = {found["stem"] for label in labels if (found := _SHORTER.fullmatch(label))}
    return lambda label: name_shorter_run(label, alone=len(kinds) == 1)


def name_rows(found: Comparison, best: AtBest | None = None) -> tuple[Comparison, AtBest | None]:
    """Return the same comparison with the names that people read instead of labels."""
    name = name_among(row.label for row in found.rows)

    def named(row: Row) -> Row:
        return replace(row, label=name(row.label))

    shown = replace(found, against=name(found.against), rows=tuple(map(named, found.rows)))
    if best is None:
        return shown, None
    rows = tuple(replace(one, row=named(one.row)) for one in best.rows)
    lines = {name(label): points for label, points in best.by_rate.items()}
    return shown, replace(best, rows=rows, left_out=tuple(map(name, best.left_out)), by_rate=lines)


def capitalize(label: str) -> str:
    """Write the method of the paper as the paper does; other labels stay as they are.

    >>> capitalize("infobatch:ratio=0.3"), capitalize("infobatcher"), capitalize("random")
    ('InfoBatch:ratio=0.3', 'infobatcher', 'random')
    """
    rest = label[len(METHOD_OF_THE_PAPER) :]
    is_ours = label.startswith(METHOD_OF_THE_PAPER) and not rest[:1].isalnum()
    return f"InfoBatch{rest}" if is_ours else label


def describe(label: str) -> str:
    """Write a label out in words, for pages whose readers do not know the settings of the lab.

    >>> describe("infobatch+loss whole_last · lr=0.2")
    'InfoBatch, loss grows, lr 0.2 (older last batch)'
    >>> describe("random:ratio=0.38+lr"), describe("full, 52200 steps · lr=0.05"), describe("full")
    ('random:ratio=0.38, learning rate grows', 'shorter run (52,200 steps), lr 0.05', 'full data')
    """
    if _SHORTER.fullmatch(label):
        return name_shorter_run(label).replace(" · ", ", ").replace("=", " ")
    stem, _, settings = label.partition(" · ")
    method, _, ideas = stem.partition(" ")
    method, plus, grows = method.rpartition("+")
    if not plus or grows not in _GROWS:
        method, grows = stem.partition(" ")[0], ""
    name = "full data" if method == "full" else capitalize(method)
    parts = [name, _GROWS.get(grows, ""), settings.replace("=", " ")]
    described = ", ".join(filter(None, parts))
    special = ", ".join(OLDER_LAST_BATCH if idea == "whole_last" else idea for idea in filter(None, ideas.split("+")))
    return f"{described} ({special})" if special else described
