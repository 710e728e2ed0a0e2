"""A trial: some passes of a copied loader over fresh training data, and where each loss went.

Each row of each batch gets a loss of its own, a running number; afterwards the scores tell which sample has which
number. Which sample a row really holds is known from its content (tracing.py). Both together are the account.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from ...dataset import Pruned
from ...epoch.scores import SKIPPED, UNSEEN
from ...errors import InfoBatchError
from .tracing import Census, Log, Part, Where, count_rows, rows

HERE = Path(__file__).parent
EXACT = 2**24  # float32 tells whole numbers apart up to here


def tail(error: BaseException) -> str:
    """The last lines of a traceback, from the last one of ours on."""
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    files = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    theirs = [number for number in files if str(HERE) not in lines[number]]
    behind = [number for number in theirs if all(number > other for other in files if str(HERE) in lines[other])]
    return "\n".join(lines[max(behind[0] if behind else 0, len(lines) - 8) :])


@dataclass
class Walk:
    """What one pass showed."""

    planned: int
    """How many samples the plan has."""
    first: int
    """The running number of its first row."""
    census: Census = field(default_factory=Census)
    counts: list[int] = field(default_factory=list)
    """The rows of each batch."""
    uncounted: int = 0
    """Batches in which no rows could be made out."""
    keys: dict[Where, list[int]] = field(default_factory=dict)
    """For each part of a batch and each row: the fingerprint it was recognised by, or 0."""
    numbers: dict[Where, list[int]] = field(default_factory=dict)
    """For each part of a batch that is a whole number in every row: those numbers."""
    went: dict[int, int] = field(default_factory=dict)
    """Sample -> the row whose loss became its score."""
    error: str = ""
    """What the attribution machinery said."""
    error_at: int = 0
    """In which batch, counted from 1."""
    crash: str = ""
    """The end of a traceback that is not of our making."""
    ended: bool = False
    endless: bool = False
    waiting: float = 0.0
    planning: float = 0.0
    updating: float = 0.0

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def failed(self) -> bool:
        return bool(self.error or self.crash)

    def identities(self) -> list[list[int]]:
        """The parts of a batch that tell its samples apart."""
        known = [keys for keys in self.keys.values() if sum(map(bool, keys)) >= 0.9 * self.total > 0]
        return [keys for keys in known if 2 * len(set(keys)) > self.total]

    def index(self) -> Where | None:
        """The part of a batch that says which sample each row is of, where there is one."""
        known, content = self.census.keys, self.identities()
        for where, numbers in self.numbers.items():
            for keys in content:
                named = zip(keys, numbers, strict=True)
                if keys is not self.keys[where] and all(key in known.get(one, ()) for key, one in named):
                    return where
        return None

    @property
    def changed_counts(self) -> bool:
        """Whether batches have more or fewer rows than samples were fetched for them. Parts of batches are fine."""
        sizes = self.census.sizes
        if any(asked != came for asked, came in sizes):
            return True
        if set(self.counts) <= {asked for asked, _ in sizes}:
            return False
        return not self.ended or self.total != sum(asked for asked, _ in sizes)


@dataclass(frozen=True)
class Account:
    """Where the losses went."""

    right: int = 0
    wrong: int = 0
    inside: int = 0
    """Of the wrong ones: those that went to another sample of the same batch."""
    undecided: int = 0
    elsewhere: int = 0
    """Of the right ones: those with another part that is of another sample."""

    @property
    def came(self) -> int:
        return self.right + self.wrong + self.undecided

    def __add__(self, other: Account) -> Account:
        return Account(
            *(mine + others for mine, others in zip(asdict(self).values(), asdict(other).values(), strict=True))
        )


def account(walk: Walk) -> Account:
    """Hold what the scores say against what the rows hold; where their parts do not agree, against the best."""
    every = [_account(walk, keys) for keys in walk.identities() or [[]]]
    best = min(every, key=lambda found: found.wrong)
    return replace(best, elsewhere=max(found.wrong for found in every) - best.wrong)


def _account(walk: Walk, keys: list[int]) -> Account:
    batch = [number for number, count in enumerate(walk.counts) for _ in range(count)]
    together: dict[int, set[int]] = {}
    for sample, row in walk.went.items():
        together.setdefault(batch[row], set()).add(sample)
    right = wrong = inside = undecided = 0
    for sample, row in walk.went.items():
        key = keys[row] if keys else 0
        if not key or sample not in walk.census.keys:
            undecided += 1
        elif key in walk.census.keys[sample]:
            right += 1
        else:
            wrong += 1
            inside += walk.census.owner[key] in together[batch[row]]
    return Account(right, wrong, inside, undecided)


def _whole_numbers(each: Sequence[Part]) -> list[int]:
    """One a row; none where a row is something else."""
    numbers = [float(row) for row in each if isinstance(row, torch.Tensor) and row.numel() == 1]
    whole = len(numbers) == len(each) and all(number.is_integer() for number in numbers)
    return [int(number) for number in numbers] if whole else []


@dataclass
class Trial:
    loader: Any
    data: Pruned
    log: Log
    lookahead: int = 0
    """How many batches the loop fetches before it updates the one at hand."""
    single: bool = False
    """Whether the loader delivers samples and no batches."""
    by: Where | None = None
    """The part of a batch that goes to ``update`` as indices, if one does."""
    walks: list[Walk] = field(default_factory=list)

    def run(self, epochs: int) -> Trial:
        """Stops after a pass in which something went wrong, as training would."""
        while len(self.walks) < epochs and all(walk.ended and walk.counts and not walk.failed for walk in self.walks):
            self.walks.append(self._walk())
        return self

    @property
    def failed(self) -> Walk | None:
        return next((walk for walk in self.walks if walk.failed), None)

    @property
    def crashed(self) -> bool:
        return any(walk.crash for walk in self.walks)

    @cached_property
    def account(self) -> Account:
        """Of all passes; to be asked for when they are made."""
        return sum(map(account, self.walks), Account())

    def _walk(self) -> Walk:
        began = perf_counter()
        plan = self.data.plan()
        planning = perf_counter() - began
        walk = Walk(plan.kept, sum(walk.total for walk in self.walks), planning=planning)
        self.log.read(Census())  # what an earlier pass had fetched ahead is not of this one
        try:
            self._loop(walk)
            self._ask(walk)
        except InfoBatchError as error:
            if not walk.error:
                walk.error, walk.error_at = str(error), len(walk.counts) + 1
        except (Exception, SystemExit) as error:
            walk.crash = tail(error)
            traceback.clear_frames(error.__traceback__)  # they hold the loader's iterator, and that holds workers
        return walk

    def _loop(self, walk: Walk) -> None:
        at_hand: deque[Any] = deque()
        batches = iter(self.loader)
        while not walk.ended and walk.total + walk.uncounted <= 4 * len(self.data) + 64:
            began = perf_counter()
            try:
                at_hand.append(next(batches))
            except StopIteration:
                walk.ended = True
            finally:
                walk.waiting += perf_counter() - began
            if len(at_hand) > self.lookahead:
                self._settle(at_hand.popleft(), walk)
        while at_hand:
            self._settle(at_hand.popleft(), walk)
        walk.endless = not walk.ended

    def _settle(self, batch: Any, walk: Walk) -> None:
        """Look at a batch, and give each of its rows a loss."""
        self.log.read(walk.census)
        batch = [batch] if self.single else batch
        count, before = 1 if self.single else count_rows(batch, walk.census.likely), walk.total
        if not count:
            walk.uncounted += 1
            return
        walk.counts.append(count)
        each_part = dict(rows(batch, count))
        found = {where: [walk.census.recognise(row) for row in each] for where, each in each_part.items()}
        numbers = {where: whole for where, each in each_part.items() if (whole := _whole_numbers(each))}
        if not before:
            walk.numbers = {where: [] for where in numbers}
        walk.numbers = {where: known for where, known in walk.numbers.items() if where in numbers}
        for where, known in walk.numbers.items():
            known.extend(numbers[where])
        for where in {*walk.keys, *found}:
            walk.keys.setdefault(where, [0] * before).extend(found.get(where, [0] * count))
        if not walk.error:
            began = perf_counter()
            try:
                losses = (torch.arange(count) + (walk.first + before - self._shift)).float()
                self.data.update(losses, None if self.by is None else torch.tensor(numbers[self.by]))
            except InfoBatchError as error:
                walk.error, walk.error_at = str(error), len(walk.counts)
            walk.updating += perf_counter() - began

    @property
    def _shift(self) -> int:
        """Negative numbers are exact, too: with them twice as many rows can be told apart."""
        return 0 if 8 * len(self.data) < EXACT else EXACT - 1

    def _ask(self, walk: Walk) -> None:
        """Which sample has which running number for a score, in the epoch that ended or in one still open."""
        state = self.data.state_dict()
        scores = state["scores"]
        if state["running"] is not None:
            fresh = state["running"]["fresh"]
            scores = torch.where((fresh != UNSEEN) & (fresh != SKIPPED), fresh, scores)
        numbers = scores.double() + (self._shift - walk.first)
        here = (numbers >= 0) & (numbers < walk.total)
        walk.went = dict(zip(self.data.owned[here].tolist(), numbers[here].long().tolist(), strict=True))
