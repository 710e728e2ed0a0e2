"""Make some passes of a copied loader over fresh training data, and record where each loss went.

Each row of each batch gets a unique loss, a running number; afterwards the scores show which sample has which number.
Which sample a row really holds is known from its content (tracing.py). The account compares the two.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from ...dataset import Pruned
from ...epoch.slice import SKIPPED, UNSEEN
from ...errors import InfoBatchError
from .tracing import Census, Log, Part, Where, are_samples, count_rows, rows

HERE = Path(__file__).parent
EXACT = 2**24  # float32 represents whole numbers exactly up to here


def tail(error: BaseException) -> str:
    """Return the last lines of a traceback, without our own frames."""
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    files = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    theirs = [number for number in files if str(HERE) not in lines[number]]
    behind = [number for number in theirs if all(number > other for other in files if str(HERE) in lines[other])]
    return "\n".join(lines[max(behind[0] if behind else 0, len(lines) - 8) :])


@dataclass
class PassTrace:
    """What one pass over the loader showed."""

    planned: int
    """How many samples the plan has."""
    first: int
    """The running number of its first row."""
    census: Census = field(default_factory=Census)
    counts: list[int] = field(default_factory=list)
    """The rows of each batch."""
    uncounted: int = 0
    """Batches in which no rows could be identified."""
    keys: dict[Where, list[int]] = field(default_factory=dict)
    """Per field of a batch and row: the fingerprint it was recognized by, or 0."""
    numbers: dict[Where, list[int]] = field(default_factory=dict)
    """Per field of a batch that is a whole number in every row: these numbers."""
    went: dict[int, int] = field(default_factory=dict)
    """Sample -> the row whose loss became its score."""
    error: str = ""
    """The error that update() raised."""
    error_at: int = 0
    """In which batch, counted from 1."""
    crash: str = ""
    """The end of a traceback from the user's code."""
    ended: bool = False
    endless: bool = False

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def failed(self) -> bool:
        return bool(self.error or self.crash)

    def identities(self) -> list[list[int]]:
        """Return the fields of a batch that distinguish its samples."""
        known = [keys for keys in self.keys.values() if sum(map(bool, keys)) >= 0.9 * self.total > 0]
        return [keys for keys in known if 2 * len(set(keys)) > self.total]

    def index(self) -> Where | None:
        """Find the field of a batch that holds the index of each row's sample, if there is one."""
        known, content = self.census.keys, self.identities()
        for where, numbers in self.numbers.items():
            for keys in content:
                named = zip(keys, numbers, strict=True)
                if keys is not self.keys[where] and all(key in known.get(one, ()) for key, one in named):
                    return where
        return None

    @cached_property
    def placement(self) -> tuple[dict[Where, int], int]:
        """Compare each field of the batches with the fields of the samples that got the losses.

        Returns:
            Per field whose values arrive only in other rows of their batch: in how many rows they differ. Values
            that are equal, such as labels, may change places. And how many fields of the samples were not found.
        """
        sample_in = {row: sample for sample, row in self.went.items() if sample in self.census.keys}
        ends = accumulate(self.counts)
        batches = [range(end - count, end) for end, count in zip(ends, self.counts, strict=True)]
        batches = [batch for batch in batches if all(row in sample_in for row in batch)]
        places = [(number, row) for number, batch in enumerate(batches) for row in batch]
        samples = [self.census.keys[sample_in[row]] for _, row in places]
        lengths = {len(keys) for keys in samples}
        fields = range(*lengths) if len(lengths) == 1 else (0, -1) * bool(min(lengths, default=0))
        columns = {where: tuple(keys[row] for _, row in places) for where, keys in self.keys.items()}
        expected = {tuple(keys[at] for keys in samples) for at in fields}
        missing = expected - set(columns.values())
        inside = [Counter((number, key) for (number, _), key in zip(places, one, strict=True)) for one in missing]
        found = {}
        for where, column in columns.items():
            values = Counter((number, key) for (number, _), key in zip(places, column, strict=True))
            for one, other in zip(missing, inside, strict=True):
                if column not in expected and values == other:
                    found[where] = sum(mine != theirs for mine, theirs in zip(column, one, strict=True))
        return found, len(missing)

    @property
    def changed_counts(self) -> bool:
        """True if batches have more or fewer rows than fetched samples; a batch delivered in pieces is fine."""
        sizes = self.census.sizes
        if any(requested != returned for requested, returned in sizes):
            return True
        return self._has_other_counts and (not self.ended or self.total != sum(requested for requested, _ in sizes))

    @property
    def in_pieces(self) -> bool:
        """True if batches were delivered in pieces, which ``update`` can only attribute by their indices."""
        return self._has_other_counts and not self.changed_counts

    @property
    def _has_other_counts(self) -> bool:
        return not set(self.counts) <= {requested for requested, _ in self.census.sizes}


@dataclass(frozen=True)
class Account:
    """Where the losses went."""

    right: int = 0
    wrong: int = 0
    inside: int = 0
    """The wrong losses that went to another sample of the same batch."""
    undecided: int = 0

    @property
    def losses(self) -> int:
        return self.right + self.wrong + self.undecided

    def __add__(self, other: Account) -> Account:
        return Account(
            *(mine + others for mine, others in zip(asdict(self).values(), asdict(other).values(), strict=True))
        )


def account(trace: PassTrace) -> Account:
    """Compare the scores with the content of the rows; if fields disagree, use the one that matches best."""
    return min((_account(trace, keys) for keys in trace.identities() or [[]]), key=lambda found: found.wrong)


def _account(trace: PassTrace, keys: list[int]) -> Account:
    batch = [number for number, count in enumerate(trace.counts) for _ in range(count)]
    together: dict[int, set[int]] = {}
    for sample, row in trace.went.items():
        together.setdefault(batch[row], set()).add(sample)
    right = wrong = inside = undecided = 0
    for sample, row in trace.went.items():
        key = keys[row] if keys else 0
        if not key or sample not in trace.census.keys:
            undecided += 1
        elif key in trace.census.keys[sample]:
            right += 1
        else:
            wrong += 1
            inside += trace.census.owner[key] in together[batch[row]]
    return Account(right, wrong, inside, undecided)


def _whole_numbers(each: Sequence[Part]) -> list[int]:
    """Return one number per row; empty if a row holds something else."""
    numbers = [float(row) for row in each if isinstance(row, torch.Tensor) and row.numel() == 1]
    whole = len(numbers) == len(each) and all(number.is_integer() for number in numbers)
    return [int(number) for number in numbers] if whole else []


@dataclass
class Trial:
    """Passes over a copied loader, with the losses that were sent to ``update``."""

    loader: Any
    data: Pruned
    log: Log
    pairs: bool = False
    """True if the loader yields (batch, indices), and the loop passes the indices to ``update``."""
    single: bool = False
    """True if the loader delivers single samples."""
    by: Where | None = None
    """The field of a batch that is passed to ``update`` as indices, if any."""
    traces: list[PassTrace] = field(default_factory=list)

    def run(self, epochs: int) -> Trial:
        """Make the passes; stop after one in which something went wrong, as training would."""
        while len(self.traces) < epochs and all(
            trace.ended and trace.counts and not trace.failed for trace in self.traces
        ):
            self.traces.append(self._make_pass())
        return self

    @property
    def failed(self) -> PassTrace | None:
        return next((trace for trace in self.traces if trace.failed), None)

    @property
    def crashed(self) -> bool:
        return any(trace.crash for trace in self.traces)

    @cached_property
    def account(self) -> Account:
        """Where the losses of all passes went; only valid after ``run``."""
        return sum(map(account, self.traces), Account())

    @cached_property
    def moved(self) -> dict[Where, int]:
        """The fields that arrive in other rows than their samples in every pass, and in how many rows."""
        each = [trace.placement[0] for trace in self.traces]
        return {where: sum(one[where] for one in each) for where in each[0] if all(where in one for one in each)}

    def _make_pass(self) -> PassTrace:
        trace = PassTrace(self.data.plan().kept, sum(trace.total for trace in self.traces))
        self.log.read(Census())  # discard what an earlier pass had prefetched
        try:
            self._loop(trace)
            self._read_scores(trace)
        except InfoBatchError as error:
            if not trace.error:
                trace.error, trace.error_at = str(error), len(trace.counts) + 1
        except (Exception, SystemExit) as error:
            trace.crash = tail(error)
            traceback.clear_frames(error.__traceback__)  # they keep the loader's iterator and its workers alive
        return trace

    def _loop(self, trace: PassTrace) -> None:
        for batch in self.loader:
            self._update(batch, trace)
            if trace.total + trace.uncounted > 4 * len(self.data) + 64:
                trace.endless = True
                return
        trace.ended = True

    def _update(self, batch: Any, trace: PassTrace) -> None:
        """Identify the rows of a batch, and give each one a loss."""
        self.log.read(trace.census)
        beside = None
        if self.pairs:
            if not (isinstance(batch, (tuple, list)) and len(batch) == 2 and isinstance(batch[1], torch.Tensor)):
                trace.error, trace.error_at = "the indices did not come with the batch", len(trace.counts) + 1
                return
            batch, beside = batch[0], batch[1].reshape(-1).cpu()
        batch = [batch] if self.single else batch
        before, listed = trace.total, self.single or are_samples(batch, trace.census)
        count = len(batch) if listed else count_rows(batch, trace.census.frequent_sizes)
        if not count:
            trace.uncounted += 1
            return
        trace.counts.append(count)
        each_part = dict(rows(batch, count))
        found = {where: [trace.census.recognize(row) for row in each] for where, each in each_part.items()}
        numbers = {where: whole for where, each in each_part.items() if (whole := _whole_numbers(each))}
        if not before:
            trace.numbers = {where: [] for where in numbers}
        trace.numbers = {where: known for where, known in trace.numbers.items() if where in numbers}
        for where, known in trace.numbers.items():
            known.extend(numbers[where])
        for where in {*trace.keys, *found}:
            trace.keys.setdefault(where, [0] * before).extend(found.get(where, [0] * count))
        if not trace.error:
            try:
                losses = (torch.arange(count) + (trace.first + before - self._shift)).float()
                self.data.update(losses, beside if self.by is None else torch.tensor(numbers[self.by]))
            except InfoBatchError as error:
                trace.error, trace.error_at = str(error), len(trace.counts)

    @property
    def _shift(self) -> int:
        """Starting at negative numbers doubles how many rows float32 can distinguish."""
        return 0 if 8 * len(self.data) < EXACT else EXACT - 1

    def _read_scores(self, trace: PassTrace) -> None:
        """Read which sample got which running number as its score, in a finished or a running epoch."""
        state = self.data.state_dict()
        scores = state["scores"]
        if state["running"] is not None:
            fresh = state["running"]["fresh"]
            scores = torch.where((fresh != UNSEEN) & (fresh != SKIPPED), fresh, scores)
        numbers = scores.double() + (self._shift - trace.first)
        here = (numbers >= 0) & (numbers < trace.total)
        trace.went = dict(zip(self.data.owned[here].tolist(), numbers[here].long().tolist(), strict=True))
