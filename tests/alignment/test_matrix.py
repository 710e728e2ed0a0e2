"""The right loss reaches the right sample, or an error is raised: every way to feed, crossed with what loops do.

The oracle: sample ``i`` has the value ``i``, and its loss is its value. So ``scores[i] == i`` wherever a loss came,
in any order, and anything else is a loss on the wrong sample.

``python tests/alignment/test_matrix.py --write`` renders the tables of docs/alignment.md from the lists below.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, ConcatDataset, Dataset, Sampler, Subset, default_collate

import infobatch
from infobatch import MisalignedError

PAGE = Path(__file__).parents[2] / "docs" / "alignment.md"
N, BATCH, EPOCHS = 60, 8, 8
PATIENCE = 60

pytestmark = [
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*noise-to-signal of a step:infobatch.InfoBatchWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _no_hanging() -> Iterator[None]:
    """A forked worker may inherit a lock that nobody will open; fail then, do not wait."""

    def expire(*_: Any) -> None:
        raise TimeoutError(f"no progress in {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.alarm(PATIENCE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


# ---- data sets: the value is the index -------------------------------------------------------------------------

BROKEN = multiprocessing.RawValue("q", -1)
"""The sample that cannot be read just now. Shared, so that running workers know it; without a lock to inherit."""


class Numbers(Dataset[Any]):
    def __init__(self, first: int = 0, size: int = N) -> None:
        self.first, self.size = first, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Tensor:
        if self.first + index == BROKEN.value:
            raise OSError("this sample cannot be read")
        return torch.tensor(float(self.first + index))


class Pairs(Numbers):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index), index % 10


class Dicts(Numbers):
    def __getitem__(self, index: int) -> Any:
        return {"x": super().__getitem__(index), "label": index % 10}


class Many(Numbers):
    """As Hugging Face's data sets: fetches a batch at once, and single samples too."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Fewer(Numbers):
    """A broken ``__getitems__``: it loses the first sample."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices[1:]]


def value(batch: Any) -> Tensor:
    """The samples' values, whatever they are packed in."""
    if isinstance(batch, dict):
        return value(batch["x"])
    if isinstance(batch, list | tuple):
        return value(batch[0])
    return batch.reshape(-1)


def as_dict(samples: list[Any]) -> dict[str, Tensor]:
    return {"x": torch.stack(samples)}


def drop_first(samples: list[Any]) -> Tensor:
    return default_collate(samples[1:])


def drop_in_short_batches(samples: list[Any]) -> Tensor:
    return default_collate(samples[1:] if len(samples) < BATCH else samples)


def twice(samples: list[Any]) -> Tensor:
    return default_collate([*samples, *samples])


def backwards(samples: list[Any]) -> Tensor:
    return default_collate(samples[::-1])


class SortedBatches(Sampler[list[int]]):
    """Draws 32, sorts them (as by length), yields batches."""

    def __init__(self, sampler: Sampler[int]) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        for drawn in BatchSampler(self.sampler, 32, False):
            ordered = sorted(drawn)
            for start in range(0, len(ordered), BATCH):
                yield ordered[start : start + BATCH]


class Reversed(Sampler[int]):
    def __init__(self, sampler: Sampler[int]) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[int]:
        return iter(list(self.sampler)[::-1])

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]


# ---- the loop ----------------------------------------------------------------------------------------------------

FEEDERS = ("stock", "ours", "explicit")


def load(train: infobatch.InfoBatch, feeder: str, options: dict[str, Any]) -> Any:
    options = {
        name: made(train) if name.endswith("sampler") and callable(made) else made for name, made in options.items()
    }
    if options.get("num_workers"):
        options = {"timeout": PATIENCE / 2, "multiprocessing_context": "fork", **options}
    if "batch_sampler" not in options:
        options = {"batch_size": BATCH, **options}
    if feeder == "ours":
        return infobatch.DataLoader(train, **options)
    if "batch_sampler" not in options:
        options = {"sampler": train.sampler, **options}
    return torch.utils.data.DataLoader(train, **options)


class Loop:
    """A training loop that notes what it does, so that an error can be placed."""

    def __init__(self, feeder: str, options: dict[str, Any], data: Any = None) -> None:
        self.feeder = feeder
        self.train = infobatch.InfoBatch(Numbers() if data is None else data, EPOCHS, 0.5, 0.875)
        self.loader = load(self.train, feeder, options)
        self.options = options
        self.updated: set[int] = set()
        self.since: list[str] = []
        self.kept: list[Any] = []
        self.table = torch.ones(N)
        self.weights_wrong = False

    def mark(self) -> None:
        """Here the loop goes wrong: at the next call, or just now by leaving one out."""
        self.since = []

    def batches(self, loader: Any = None) -> Batches:
        self.since.append("pass")
        return Batches(self, self.loader if loader is None else loader)

    def update(self, batch: Any) -> None:
        self.since.append("update")
        x = value(batch)
        loss = self.train.update(x, x.long()) if self.feeder == "explicit" else self.train.update(x)
        self.weights_wrong |= not torch.isclose(loss, (x * self.table[x.long()]).mean())
        self.updated.update(x.long().tolist())

    def skip(self) -> None:
        self.since.append("skip")
        self.train.skip()

    def epoch(self, loader: Any = None) -> None:
        for batch in self.batches(loader):
            self.update(batch)

    def where(self) -> str:
        """The step that raised, seen from where the loop went wrong."""
        *before, last = self.since
        between = before.count("batch")
        if last == "pass" or (last == "update" and "pass" in before and "batch" not in _after_last(before, "pass")):
            return "next pass"
        if last == "update":
            return ("that update", "next update")[between] if between < 2 else "later update"
        return {"skip": "that skip", "batch": "next batch"}[last]

    def check(self) -> None:
        """No score is wrong. Where the scores cannot be had, they cannot be wrong."""
        try:
            scores = self.train.scores
        except MisalignedError:
            return
        wrong = ~torch.isnan(scores) & (scores != torch.arange(len(scores)))
        assert not wrong.any(), f"losses on the wrong samples: {wrong.nonzero().flatten().tolist()}"


def _after_last(steps: list[str], step: str) -> list[str]:
    return steps[len(steps) - steps[::-1].index(step) :]


class Batches:
    """An iterator over a loader whose steps are noted."""

    def __init__(self, loop: Loop, loader: Any) -> None:
        self.loop, self.iterator, self.first = loop, iter(loader), True
        self.epoch: int | None = None

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        self.loop.since.append("pass" if self.first else "batch")
        self.first = False
        batch = next(self.iterator)
        if self.epoch is None:
            self.epoch = self.loop.train.epoch
            self.loop.table = self.loop.train.plan().table.clone()
        return batch


def middle(step: int) -> bool:
    return step == 2


def batches_in(loop: Loop) -> int:
    return len(loop.loader)


# ---- what loops do -----------------------------------------------------------------------------------------------


def ordinary(loop: Loop) -> None:
    loop.epoch()


def in_parts(loop: Loop) -> None:
    for batch in loop.batches():
        for part in value(batch).split(3):
            loop.update(part)


def break_after_update(loop: Loop) -> None:
    for step, batch in enumerate(loop.batches()):
        loop.update(batch)
        if middle(step):
            loop.mark()
            break


def break_before_update(loop: Loop) -> None:
    for step, batch in enumerate(loop.batches()):
        if middle(step):
            loop.mark()
            break
        loop.update(batch)


def break_near_end(loop: Loop) -> None:
    last = batches_in(loop) - 2
    for step, batch in enumerate(loop.batches()):
        loop.update(batch)
        if step == last:
            loop.mark()
            break


def break_with_skip(loop: Loop) -> None:
    for step, batch in enumerate(loop.batches()):
        if middle(step):
            loop.mark()
            loop.skip()
            break
        loop.update(batch)


def break_inside_batch(loop: Loop) -> None:
    for step, batch in enumerate(loop.batches()):
        if middle(step):
            loop.update(value(batch)[:3])
            loop.mark()
            break
        loop.update(batch)


def break_and_keep(loop: Loop) -> None:
    batches = loop.batches()
    loop.kept.append(batches.iterator)
    for _ in range(3):
        loop.update(next(batches))
    loop.mark()


def break_and_keep_waiting(loop: Loop) -> None:
    batches = loop.batches()
    loop.kept.append(batches.iterator)
    loop.update(next(batches))
    next(batches)
    loop.mark()


def go_on_with_kept(loop: Loop) -> None:
    """An older iterator delivers again after a newer one has begun."""
    old = loop.batches()
    loop.update(next(old))
    new = loop.batches()
    loop.update(next(new))
    next(new)
    loop.mark()
    loop.update(next(old))


def _broken(loop: Loop, position: int) -> None:
    BROKEN.value = int(loop.train.plan().indices[position])


def _with_error(loop: Loop, position: int, then: Callable[[Loop, Any], None]) -> None:
    _broken(loop, position)
    batches, batch = loop.batches(), None
    try:
        while True:
            try:
                batch = next(batches)
            except OSError as error:
                BROKEN.value = -1
                traceback.clear_frames(error.__traceback__)  # a cycle through the iterator: its end would be slow
                loop.mark()
                then(loop, batch)
                continue
            except StopIteration:
                break
            loop.update(batch)
    finally:
        BROKEN.value = -1


def error_go_on(loop: Loop) -> None:
    _with_error(loop, 20, lambda loop, batch: None)


def error_in_first(loop: Loop) -> None:
    _with_error(loop, 0, lambda loop, batch: None)


def error_in_last(loop: Loop) -> None:
    _with_error(loop, loop.train.plan().kept - 1, lambda loop, batch: None)


def error_skip(loop: Loop) -> None:
    _with_error(loop, 20, lambda loop, batch: loop.skip())


def error_update_again(loop: Loop) -> None:
    _with_error(loop, 20, lambda loop, batch: loop.update(batch))


def error_after_skip(loop: Loop) -> None:
    """The batch before the lost one was skipped, so an update for it is wrong twice."""
    _broken(loop, 20)
    batches = loop.batches()
    loop.update(next(batches))
    batch = next(batches)
    loop.skip()
    try:
        next(batches)
    except OSError as error:
        traceback.clear_frames(error.__traceback__)
    finally:
        BROKEN.value = -1
    loop.mark()
    loop.update(batch)


def error_new_pass(loop: Loop) -> None:
    _broken(loop, 20)
    try:
        loop.epoch()
    except OSError as error:
        traceback.clear_frames(error.__traceback__)
    finally:
        BROKEN.value = -1
    loop.mark()


def validate_plain(loop: Loop) -> None:
    for step, batch in enumerate(loop.batches()):
        if middle(step):
            for _ in torch.utils.data.DataLoader(Numbers(), batch_size=BATCH):
                pass
        loop.update(batch)


def validate_same_data(loop: Loop) -> None:
    """Over the wrapped data set, without its sampler: everything in order, and no pass of training."""
    for step, batch in enumerate(loop.batches()):
        if middle(step):
            for _ in torch.utils.data.DataLoader(loop.train, batch_size=BATCH):
                pass
        loop.update(batch)


def validate_full_view(loop: Loop) -> None:
    for step, batch in enumerate(loop.batches()):
        if middle(step):
            view = loop.train.full()
            for x in torch.utils.data.DataLoader(view, batch_size=BATCH, sampler=view.sampler):
                view.update(x)
        loop.update(batch)


def _at(loop: Loop, at: str, step: int) -> bool:
    return step == {"first": 0, "middle": 2, "last": batches_in(loop) - 1}[at]


def skipping(at: str) -> Callable[[Loop], None]:
    def event(loop: Loop) -> None:
        for step, batch in enumerate(loop.batches()):
            if _at(loop, at, step):
                loop.mark()
                loop.skip()
            else:
                loop.update(batch)

    return event


def leaving_out(at: str) -> Callable[[Loop], None]:
    def event(loop: Loop) -> None:
        for step, batch in enumerate(loop.batches()):
            if _at(loop, at, step):
                loop.mark()
                continue
            loop.update(batch)

    return event


def leaving_out_then_break(loop: Loop) -> None:
    for step, batch in enumerate(loop.batches()):
        if step == 0:
            loop.mark()
            continue
        loop.update(batch)
        if middle(step):
            break


def leaving_out_then_skip(loop: Loop) -> None:
    """Said late, but said."""
    for step, batch in enumerate(loop.batches()):
        if middle(step):
            continue
        if step == 3:
            loop.mark()
            loop.skip()
        loop.update(batch)


def twice_for(at: str) -> Callable[[Loop], None]:
    def event(loop: Loop) -> None:
        for step, batch in enumerate(loop.batches()):
            loop.update(batch)
            if _at(loop, at, step):
                loop.mark()
                loop.update(batch)

    return event


def part_twice(loop: Loop) -> None:
    for step, batch in enumerate(loop.batches()):
        loop.update(batch)
        if _at(loop, "last", step):
            loop.mark()
            loop.update(value(batch)[:2])


def part_left_out(loop: Loop) -> None:
    for step, batch in enumerate(loop.batches()):
        loop.update(value(batch)[3:] if middle(step) else batch)
        if middle(step):
            loop.mark()


def part_left_out_last(loop: Loop) -> None:
    for step, batch in enumerate(loop.batches()):
        last = _at(loop, "last", step)
        loop.update(value(batch)[1:] if last else batch)
        if last:
            loop.mark()


def two_at_once(loop: Loop) -> None:
    batches = loop.batches()
    pair = torch.cat([value(next(batches)), value(next(batches))])
    loop.mark()
    loop.update(pair)


def end_before_last_update(loop: Loop) -> None:
    batches, count = loop.batches(), batches_in(loop)
    for step in range(count):
        batch = next(batches)
        if step == count - 1:
            loop.mark()
            assert next(batches, None) is None
        loop.update(batch)


def zipped(loop: Loop) -> None:
    loop.mark()
    for one, other in zip(loop.batches(), loop.batches(), strict=True):
        loop.update(one)
        loop.update(other)


def nested(loop: Loop) -> None:
    loop.mark()
    for batch in loop.batches():
        loop.update(batch)
        for other in loop.batches():
            loop.update(other)


def look_inside(loop: Loop) -> None:
    for step, batch in enumerate(loop.batches()):
        if middle(step):
            loop.mark()
            next(loop.batches())
        loop.update(batch)


def look_inside_kept(loop: Loop) -> None:
    for step, batch in enumerate(loop.batches()):
        if middle(step):
            loop.mark()
            look = loop.batches()
            loop.kept.append(look.iterator)
            next(look)
        loop.update(batch)


def one_ahead(loop: Loop) -> None:
    batches = loop.batches()
    batch = next(batches)
    loop.mark()
    while batch is not None:
        coming = next(batches, None)
        loop.update(batch)
        batch = coming


def _ahead(at: int, wrong: Callable[[Loop, Any], None]) -> Callable[[Loop], None]:
    def event(loop: Loop) -> None:
        batches, count = loop.batches(), batches_in(loop)
        batch, step = next(batches), 0
        while batch is not None:
            coming = next(batches, None)
            if step == at % count:
                loop.mark()
                wrong(loop, batch)
            else:
                loop.update(batch)
            batch, step = coming, step + 1

    return event


def _leave(loop: Loop, batch: Any) -> None:
    pass


def _twice(loop: Loop, batch: Any) -> None:
    loop.update(batch)
    loop.mark()
    loop.update(batch)


def two_ahead_leave_at_end(loop: Loop) -> None:
    """Reads two ahead; leaves out the last batch but one, when nothing more can be read."""
    batches, count = loop.batches(), batches_in(loop)
    queue = [next(batches), next(batches)]
    for step in range(count):
        coming = next(batches, None)
        queue += [] if coming is None else [coming]
        batch = queue.pop(0)
        if step == count - 2:
            loop.mark()
        else:
            loop.update(batch)


def two_ahead(loop: Loop) -> None:
    batches = loop.batches()
    queue = [next(batches), next(batches)]
    while queue:
        coming = next(batches, None)
        queue += [] if coming is None else [coming]
        loop.update(queue.pop(0))


def no_updates(loop: Loop) -> None:
    for _ in loop.batches():
        pass
    loop.mark()


def no_updates_twice(loop: Loop) -> None:
    no_updates(loop)
    no_updates(loop)


def peek(loop: Loop) -> None:
    next(loop.batches())
    loop.mark()
    loop.epoch()


def peek_kept(loop: Loop) -> None:
    batches = loop.batches()
    loop.kept.append(batches.iterator)
    next(batches)
    loop.mark()
    loop.epoch()


def peek_three_kept(loop: Loop) -> None:
    batches = loop.batches()
    loop.kept.append(batches.iterator)
    for _ in range(3):
        next(batches)
    loop.mark()
    loop.epoch()


def all_first(loop: Loop) -> None:
    everything = list(loop.batches())
    loop.mark()
    for batch in everything:
        loop.update(batch)


def one_batch_a_pass(loop: Loop) -> None:
    batch = next(loop.batches())
    loop.mark()
    loop.update(batch)


def update_after_end(loop: Loop) -> None:
    batch = None
    for batch in loop.batches():
        loop.update(batch)
    loop.mark()
    loop.update(batch)


def update_after_break(loop: Loop) -> None:
    batch = None
    for step, batch in enumerate(loop.batches()):
        loop.update(batch)
        if middle(step):
            break
    loop.mark()
    loop.update(batch)


def update_first(loop: Loop) -> None:
    loop.table = loop.train.plan().table.clone()
    indices = loop.train.plan().indices[:BATCH]
    loop.mark()
    loop.update(indices.float())
    loop.epoch()


def hand_made(loop: Loop) -> None:
    """No loader at all: walks the sampler."""
    loop.table = loop.train.plan().table.clone()
    loop.mark()
    for indices in BatchSampler(loop.train.sampler, BATCH, False):
        loop.update(torch.tensor(indices).float())
        loop.since.append("batch")


def drawn_before(loop: Loop) -> None:
    """The batches are drawn and mixed before the loader is made."""
    loop.table = loop.train.plan().table.clone()
    batches = list(BatchSampler(loop.train.sampler, BATCH, False))[::-1]
    loop.mark()
    loader = load(loop.train, loop.feeder, {**loop.options, "batch_sampler": batches})
    for batch in loop.batches(loader):
        loop.update(batch)


# ---- the matrix --------------------------------------------------------------------------------------------------

SETUPS: dict[str, dict[str, Any]] = {
    "no workers": {},
    "workers": {"num_workers": 2, "prefetch_factor": 1},
    "all fetched at once": {"num_workers": 1, "prefetch_factor": 8},
    "persistent": {"num_workers": 1, "prefetch_factor": 2, "persistent_workers": True},
    "persistent, all fetched at once": {"num_workers": 1, "prefetch_factor": 8, "persistent_workers": True},
}
# Where a batch brings its indices, what the loader has fetched does not matter.
SEEN_BY = {"stock": tuple(SETUPS), "ours": ("no workers", "workers", "persistent"), "explicit": ("no workers",)}

ALIGNED = "aligned"
OUTCOMES = {
    ALIGNED: "every loss reaches its sample, at its weight",
    "that update": "`MisalignedError` at the very update that is wrong",
    "next update": "`MisalignedError` at the first update after it",
    "later update": "`MisalignedError` at an update before the pass is over",
    "that skip": "`MisalignedError` at the `skip()`",
    "next batch": "`MisalignedError` when the loop asks for the next batch",
    "next pass": "`MisalignedError` when the next pass begins: at its first batch or first update",
    "-": "does not apply",
}


@dataclass(frozen=True)
class Row:
    """One thing that loops do, and how it ends for each feeder: the same in every setup, or by setup."""

    name: str
    event: Callable[[Loop], None]
    stock: str | dict[str, str]
    ours: str | dict[str, str]
    explicit: str | dict[str, str]
    options: dict[str, Any] = field(default_factory=dict)
    data: Callable[[], Any] = Numbers
    setups: tuple[str, ...] = tuple(SETUPS)
    warm: tuple[int, ...] = (0, 1)
    after: Callable[[Loop], None] = Loop.epoch
    in_part: bool = False
    """Too few losses look like a part of the batch, so the first weights may be those of other samples."""

    def outcome(self, feeder: str, setup: str) -> str:
        said: str | dict[str, str] = getattr(self, feeder)
        return said if isinstance(said, str) else said.get(setup, said["else"])

    def cells(self) -> list[tuple[str, str]]:
        return [
            (feeder, setup)
            for feeder in FEEDERS
            for setup in self.setups
            if setup in SEEN_BY[feeder] and self.outcome(feeder, setup) != "-"
        ]


WITH_WORKERS = tuple(SETUPS)[1:]
ANY = ("no workers", "workers")

ROWS: list[Row] = []


def row(name: str, event: Callable[[Loop], None], stock: Any, ours: Any, explicit: Any, **more: Any) -> None:
    ROWS.append(Row(name, event, stock, ours, explicit, **more))


row("an ordinary epoch", ordinary, "aligned", "aligned", "aligned")
row("micro-batches: a batch in parts, an update for each", in_parts, "aligned", "aligned", "aligned")
row(
    "break after an update",
    break_after_update,
    {"else": "aligned", "persistent, all fetched at once": "next pass"},
    "aligned",
    "aligned",
)
row(
    "break before the update of the batch at hand",
    break_before_update,
    {"else": "aligned", "persistent": "next pass", "persistent, all fetched at once": "next pass"},
    "aligned",
    "aligned",
)
row(
    "the same, with skip() before the break",
    break_with_skip,
    {"else": "aligned", "persistent, all fetched at once": "next pass"},
    "aligned",
    "next pass",
)
row(
    "break one batch before the end",
    break_near_end,
    {"else": "aligned", "persistent": "next pass", "persistent, all fetched at once": "next pass"},
    "aligned",
    "aligned",
)
row("break after a part of a batch", break_inside_batch, "next pass", "next pass", "aligned", setups=ANY)
row(
    "break, and the old iterator is kept",
    break_and_keep,
    {"else": "aligned", "persistent, all fetched at once": "next pass"},
    "aligned",
    "aligned",
)
row(
    "break with a batch at hand, and the old iterator is kept",
    break_and_keep_waiting,
    "next pass",
    "next pass",
    "aligned",
)
row(
    "an old iterator delivers after a new one began",
    go_on_with_kept,
    {
        "else": "next batch",
        "all fetched at once": "next update",
        "persistent": "next update",
        "persistent, all fetched at once": "next pass",
    },
    "next batch",
    "next batch",
)
row("a sample cannot be read; the loop goes on", error_go_on, "next update", "aligned", "aligned")
row("the same in the first batch", error_in_first, "next update", "aligned", "aligned")
row(
    "the same in the last batch",
    error_in_last,
    {"else": "aligned", "persistent": "next pass", "persistent, all fetched at once": "next pass"},
    "aligned",
    "aligned",
)
row("a sample cannot be read; skip(), and the loop goes on", error_skip, "aligned", "that skip", "next update")
row(
    "a sample cannot be read; the batch before is updated again",
    error_update_again,
    "that update",
    "that update",
    "next pass",
)
row(
    "a batch is skipped, the next cannot be read; the skipped one is updated",
    error_after_skip,
    "that update",
    "that update",
    "that update",
)
row(
    "a sample cannot be read; a new pass begins",
    error_new_pass,
    {"else": "aligned", "persistent": "next pass", "persistent, all fetched at once": "next pass"},
    "aligned",
    "aligned",
)
row("a validation loader inside the epoch", validate_plain, "aligned", "aligned", "aligned", setups=ANY)
row(
    "the training data without its sampler inside the epoch",
    validate_same_data,
    "aligned",
    "aligned",
    "aligned",
    setups=ANY,
)
row("a pass over .full() inside the epoch", validate_full_view, "aligned", "aligned", "aligned", setups=ANY)
row("skip() of the first batch", skipping("first"), "aligned", "aligned", "next update")
row("skip() of the middle batch", skipping("middle"), "aligned", "aligned", "next update")
row("skip() of the last batch", skipping("last"), "aligned", "aligned", "next pass")
row("the first batch left out, unsaid", leaving_out("first"), "next update", "next update", "aligned")
row("the middle batch left out, unsaid", leaving_out("middle"), "next update", "next update", "aligned")
row(
    "the last batch left out, unsaid",
    leaving_out("last"),
    {"else": "aligned", "persistent": "next pass", "persistent, all fetched at once": "next pass"},
    "aligned",
    "aligned",
)
row("the first batch left out, unsaid, and a break", leaving_out_then_break, "next update", "next update", "aligned")
row(
    "a batch left out, and skip() one batch late",
    leaving_out_then_skip,
    "aligned",
    "aligned",
    "that update",
    setups=ANY,
)
row("two updates for the first batch", twice_for("first"), "that update", "that update", "later update")
row("two updates for the middle batch", twice_for("middle"), "that update", "that update", "later update")
row("two updates for the last batch", twice_for("last"), "that update", "that update", "that update / next pass")
row(
    "a part of the last batch a second time, drop_last",
    part_twice,
    "that update",
    "that update",
    "next pass",
    options={"drop_last": True},
    setups=ANY,
)
row(
    "losses for a part of a middle batch",
    part_left_out,
    "next update",
    "next update",
    "aligned",
    setups=ANY,
    in_part=True,
)
row(
    "losses for a part of the last batch",
    part_left_out_last,
    "next pass",
    "next pass",
    "aligned",
    setups=ANY,
    in_part=True,
)
row("the losses of two batches in one update", two_at_once, "that update", "that update", "aligned", setups=ANY)
row(
    "the loader is asked for more before the last update, drop_last",
    end_before_last_update,
    "aligned",
    "aligned",
    "aligned",
    options={"drop_last": True},
    setups=ANY,
)
row("zip(loader, loader)", zipped, "next pass", "next pass", "next batch")
row(
    "a loop over the loader inside a loop over it",
    nested,
    {
        "else": "next batch",
        "all fetched at once": "later update",
        "persistent": "aligned",
        "persistent, all fetched at once": "next pass",
    },
    {"else": "next batch", "persistent": "aligned"},
    "next batch",
)
row("next(iter(loader)) inside the epoch", look_inside, "next pass", "next pass", "next batch")
row("the same, and its iterator is kept", look_inside_kept, "next pass", "next pass", "next batch")
row("a loop that reads one batch ahead", one_ahead, "next update", "next update", "aligned")
AHEAD = {"options": {"lookahead": 1, "drop_last": True}, "setups": ANY, "after": one_ahead}
row("lookahead=1, reads one ahead", one_ahead, "-", "aligned", "-", options={"lookahead": 1}, after=one_ahead)
row("lookahead=1, ordinary loop", ordinary, "-", "next pass", "-", **AHEAD)
row("lookahead=1, a middle batch left out, unsaid", _ahead(2, _leave), "-", "next update", "-", **AHEAD)
row("lookahead=1, the last batch but one left out, unsaid", _ahead(-2, _leave), "-", "next update", "-", **AHEAD)
row("lookahead=1, the last batch left out, unsaid", _ahead(-1, _leave), "-", "aligned", "-", **AHEAD)
row("lookahead=1, two updates for a middle batch", _ahead(2, _twice), "-", "that update", "-", **AHEAD)
row("lookahead=1, two updates for the last batch but one", _ahead(-2, _twice), "-", "that update", "-", **AHEAD)
row("lookahead=1, two updates for the last batch", _ahead(-1, _twice), "-", "that update", "-", **AHEAD)
row(
    "lookahead=2, reads two ahead",
    two_ahead,
    "-",
    "aligned",
    "-",
    options={"lookahead": 2, "drop_last": True},
    setups=ANY,
    after=two_ahead,
    in_part=True,
)
row(
    "lookahead=2, the last batch but one left out, unsaid",
    two_ahead_leave_at_end,
    "-",
    "next pass",
    "-",
    options={"lookahead": 2, "drop_last": True},
    setups=ANY,
    after=two_ahead,
    in_part=True,
)
row(
    "in_order=False",
    ordinary,
    "next pass",
    "aligned",
    "-",
    options={"in_order": False},
    setups=("workers", "persistent"),
)
row(
    "a whole pass without updates",
    no_updates,
    {"else": "next pass", "workers": "aligned", "all fetched at once": "aligned"},
    "next pass",
    "next pass",
)
row("two whole passes without updates", no_updates_twice, "next pass", "next pass", "next pass")
row(
    "a peek, next(iter(loader)), before training",
    peek,
    {"else": "aligned", "persistent, all fetched at once": "next pass"},
    "aligned",
    "aligned",
)
row(
    "a peek, and its iterator is kept",
    peek_kept,
    {"else": "aligned", "persistent, all fetched at once": "next pass"},
    "aligned",
    "aligned",
)
row("a peek at three batches, and its iterator is kept", peek_three_kept, "next pass", "next pass", "aligned")
row("list(loader) first, then the updates", all_first, "that update", "that update", "aligned")
row(
    "one batch a pass: x = next(iter(loader)); update",
    one_batch_a_pass,
    {
        "else": "aligned",
        "workers": "that update",
        "all fetched at once": "that update",
        "persistent, all fetched at once": "next pass",
    },
    "aligned",
    "aligned",
)
row(
    "a batch sampler that sorts, around ours",
    ordinary,
    "next pass",
    "aligned",
    "aligned",
    options={"batch_sampler": lambda train: SortedBatches(train.sampler)},
    setups=ANY,
)
row(
    "a batch sampler that ignores ours",
    ordinary,
    "next pass",
    "next pass",
    "next pass",
    options={"batch_sampler": lambda train: BatchSampler(range(N), BATCH, False)},
    setups=ANY,
)
row(
    "torch's BatchSampler around ours",
    ordinary,
    "aligned",
    "aligned",
    "aligned",
    options={"batch_sampler": lambda train: BatchSampler(train.sampler, BATCH, False)},
    setups=ANY,
)
row(
    "a sampler that reorders, around ours",
    ordinary,
    "next pass",
    "-",
    "aligned",
    options={"sampler": lambda train: Reversed(train.sampler)},
    setups=ANY,
)
row("batches drawn from our sampler beforehand", drawn_before, "next pass", "next pass", "aligned", setups=ANY)
row("no loader: a walk over the sampler", hand_made, "that update", "-", "aligned", setups=("no workers",))
row(
    "a collate that drops a sample of each batch",
    ordinary,
    "next update",
    "next update",
    "aligned",
    options={"collate_fn": drop_first},
    setups=ANY,
    in_part=True,
)
row(
    "a collate that drops a sample of the last batch",
    ordinary,
    "next pass",
    "next pass",
    "aligned",
    options={"collate_fn": drop_in_short_batches},
    setups=ANY,
    in_part=True,
)
row(
    "a collate that doubles its samples",
    ordinary,
    "next pass",
    "next pass",
    "later update",
    options={"collate_fn": twice},
    setups=ANY,
)
row(
    "a __getitems__ that loses a sample",
    ordinary,
    "next update",
    "next update",
    "aligned",
    data=Fewer,
    setups=ANY,
    warm=(0,),
    in_part=True,
)
row(
    "update() after the last batch had its own",
    update_after_end,
    "that update",
    "that update",
    "that update / next pass",
)
row("update() after a break", update_after_break, "that update", "that update", "next pass")
row("update() before any batch", update_first, "that update", "that update", "later update", setups=ANY)


def play(row: Row, feeder: str, setup: str, warm: int) -> str:
    """How it ends. ``warm`` ordinary epochs go before; those after it turn whatever waits into scores."""
    loop = Loop(feeder, {**SETUPS[setup], **row.options}, row.data())
    plain = load(loop.train, feeder, {})
    for _ in range(warm):
        loop.epoch(plain)
    loop.mark()
    outcome, due = ALIGNED, set[int]()
    try:
        row.event(loop)
        due = set(loop.updated)
        row.after(loop)
        loop.since.append("pass")
        known = set((~torch.isnan(loop.train.scores)).nonzero().flatten().tolist())
        assert due <= known <= loop.updated
        assert loop.train.epoch > warm
    except MisalignedError:
        outcome = loop.where()
    assert not loop.weights_wrong or (row.in_part and outcome != ALIGNED), "the weights of other samples"
    loop.check()
    loop.kept.clear()
    loop.mark()
    for _ in range(2):
        with contextlib.suppress(MisalignedError):
            loop.epoch(plain)
        loop.check()
    return outcome


@pytest.mark.parametrize(
    ("row", "feeder", "setup"),
    [pytest.param(row, *cell, id="-".join((row.name, *cell))) for row in ROWS for cell in row.cells()],
)
def test_event(row: Row, feeder: str, setup: str) -> None:
    for warm in row.warm if setup == "no workers" else row.warm[-1:]:
        assert play(row, feeder, setup, warm) in row.outcome(feeder, setup).split(" / ")


# ---- configurations ----------------------------------------------------------------------------------------------

WORKERS = {"num_workers": 2}
CONFIGURATIONS: dict[str, tuple[dict[str, Any], Callable[[], Any]]] = {
    "no workers": ({}, Numbers),
    "2 workers": (WORKERS, Numbers),
    "2 workers, prefetch_factor=1": ({**WORKERS, "prefetch_factor": 1}, Numbers),
    "2 workers, prefetch_factor=4": ({**WORKERS, "prefetch_factor": 4}, Numbers),
    "persistent_workers": ({**WORKERS, "persistent_workers": True}, Numbers),
    "2 workers by spawn, persistent": (
        {**WORKERS, "multiprocessing_context": "spawn", "persistent_workers": True},
        Numbers,
    ),
    "drop_last": ({"drop_last": True}, Numbers),
    "drop_last, 2 workers": ({**WORKERS, "drop_last": True}, Numbers),
    "drop_last, persistent_workers": ({**WORKERS, "drop_last": True, "persistent_workers": True}, Numbers),
    "pin_memory": ({"pin_memory": True}, Numbers),
    "pin_memory, 2 workers": ({**WORKERS, "pin_memory": True}, Numbers),
    "batch_size=None": ({"batch_size": None}, Numbers),
    "batch_size=None, 2 workers": ({**WORKERS, "batch_size": None}, Numbers),
    "batch_size=1": ({"batch_size": 1}, Numbers),
    "a batch larger than the data set": ({"batch_size": 2 * N}, Numbers),
    "a collate_fn of one's own": ({"collate_fn": as_dict}, Numbers),
    "a collate_fn of one's own, 2 workers": ({**WORKERS, "collate_fn": as_dict}, Numbers),
    "samples as tuples": ({}, Pairs),
    "samples as dicts": ({}, Dicts),
    "samples as dicts, 2 workers": (WORKERS, Dicts),
    "a Subset inside": ({}, lambda: Subset(Numbers(-10, N + 20), range(10, N + 10))),
    "a Subset inside, 2 workers": (WORKERS, lambda: Subset(Numbers(-10, N + 20), range(10, N + 10))),
    "a ConcatDataset inside": (WORKERS, lambda: ConcatDataset([Numbers(0, 25), Numbers(25, N - 25)])),
    "a data set with __getitems__ inside": ({}, Many),
    "a data set with __getitems__ inside, 2 workers": (WORKERS, Many),
    "a Subset of one with __getitems__ inside": ({}, lambda: Subset(Many(-10, N + 20), range(10, N + 10))),
}


@pytest.mark.parametrize("feeder", FEEDERS)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configuration(name: str, feeder: str) -> None:
    options, data = CONFIGURATIONS[name]
    loop = Loop(feeder, options, data())
    for epoch in range(3):
        steps = 0
        for batch in loop.batches():
            assert loop.train.epoch == epoch
            loop.update(batch)
            steps += 1
        assert steps > 0
        if feeder == "explicit" and options.get("drop_last"):
            continue  # only the next pass tells that nothing more will come
        known = (~torch.isnan(loop.train.scores)).nonzero().flatten().tolist()
        assert known == sorted(loop.updated)
    loop.check()
    assert not loop.weights_wrong
    assert len(loop.train.history) >= 2
    assert loop.train.history[1].saved > 0.1


# ---- single cases that a table does not hold -----------------------------------------------------------------------


def test_an_iterator_kept_alive_by_its_own_error_is_no_rival() -> None:
    """An error in a worker ties its iterator into a cycle, so it lives on after the loop has let it go."""
    loop = Loop("stock", {"num_workers": 1, "prefetch_factor": 1})
    _broken(loop, 20)
    kept: list[OSError] = []
    try:
        loop.epoch()
    except OSError as error:
        kept.append(error)
    finally:
        BROKEN.value = -1
    assert kept
    loop.epoch(load(loop.train, "stock", {}))
    loop.check()
    traceback.clear_frames(kept[0].__traceback__)


@pytest.mark.parametrize("workers", [0, 1])
def test_single_samples_lost_to_an_error_do_not_shift_the_rest(workers: int) -> None:
    """With batch_size=None no indices travel: positions are counted, and a lost one counts."""
    loop = Loop("ours", {"batch_size": None, "num_workers": workers})
    _with_error(loop, 20, lambda loop, batch: None)
    loop.epoch()
    loop.check()
    assert not loop.weights_wrong


def test_doubtful_losses_do_not_travel_in_a_checkpoint() -> None:
    loop = Loop("stock", {"collate_fn": drop_first})
    with pytest.raises(MisalignedError):
        loop.epoch()
    state = loop.train.state_dict()
    again = Loop("stock", {})
    again.train.load_state_dict(state)
    again.epoch()
    again.check()


@pytest.mark.parametrize("feeder", FEEDERS)
def test_order_inside_a_batch_is_the_callers(feeder: str) -> None:
    """What nobody can see: a collate that mixes the samples of a batch. Only the caller's own indices help."""
    loop = Loop(feeder, {"collate_fn": backwards})
    loop.epoch()
    right = bool((loop.train.scores == torch.arange(N)).all())
    assert right == (feeder == "explicit")


def test_a_count_to_skip_is_a_positive_number() -> None:
    loop = Loop("ours", {})
    next(loop.batches())
    with pytest.raises(infobatch.InputError):
        loop.train.skip(0)


# ---- the document ------------------------------------------------------------------------------------------------

TITLES = {"stock": "`torch` loader", "ours": "`infobatch.DataLoader`", "explicit": "`update(loss, indices)`"}


def _told(row: Row, feeder: str) -> str:
    by_setup = {setup: row.outcome(feeder, setup) for who, setup in row.cells() if who == feeder}
    if not by_setup:
        return "-"
    outcomes = list(by_setup.values())
    usual = max(dict.fromkeys(outcomes), key=outcomes.count)
    others: dict[str, list[str]] = {}
    for setup, outcome in by_setup.items():
        if outcome != usual:
            others.setdefault(outcome, []).append(setup)
    return "; ".join([usual, *(f"{outcome} ({' / '.join(setups)})" for outcome, setups in others.items())])


def tables() -> dict[str, list[str]]:
    """The tables of the document, by name, as lines."""
    heads = [TITLES[feeder] for feeder in FEEDERS]
    return {
        "outcomes": [
            "| word | means |",
            "|---|---|",
            *(f"| {word} | {meaning} |" for word, meaning in OUTCOMES.items()),
        ],
        "events": [
            f"| what the loop does | {' | '.join(heads)} |",
            "|---|---|---|---|",
            *(f"| {row.name} | {' | '.join(_told(row, feeder) for feeder in FEEDERS)} |" for row in ROWS),
        ],
        "configurations": [
            f"| configuration | {' | '.join(heads)} |",
            "|---|---|---|---|",
            *(f"| {name} | {' | '.join([ALIGNED] * len(FEEDERS))} |" for name in CONFIGURATIONS),
        ],
    }


def marks(name: str) -> tuple[str, str]:
    return f"<!-- table: {name} -->", "<!-- end -->"


def test_the_document_says_what_the_tests_hold() -> None:
    page = PAGE.read_text()
    for name, lines in tables().items():
        begin, end = marks(name)
        assert page.count(begin) == 1
        assert page.split(begin)[1].split(end)[0].strip().splitlines() == lines
    assert sum(line.startswith("|") for line in page.splitlines()) == sum(map(len, tables().values()))


def write() -> None:
    page = PAGE.read_text()
    for name, lines in tables().items():
        begin, end = marks(name)
        before, rest = page.split(begin)
        page = "\n".join([before + begin, *lines, end + rest.split(end, 1)[1]])
    PAGE.write_text(page)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/alignment/test_matrix.py --write")
    write()
