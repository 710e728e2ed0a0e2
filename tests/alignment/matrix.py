"""What loops do, crossed with every way to feed and load: how each cell ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import actions as do
from loop import (
    BATCH,
    FEEDERS,
    Dicts,
    Fewer,
    Loop,
    Many,
    N,
    Numbers,
    Pairs,
    Reversed,
    SortedBatches,
    as_dict,
    drop_first,
    drop_in_short_batches,
    twice,
)
from torch.utils.data import BatchSampler, ConcatDataset, Subset

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
UNLESS_PERSISTENT = {"else": "aligned", "persistent": "next pass", "persistent, all fetched at once": "next pass"}
UNLESS_ALL_HELD = {"else": "aligned", "persistent, all fetched at once": "next pass"}

ROWS: list[Row] = []


def row(name: str, event: Callable[[Loop], None], stock: Any, ours: Any, explicit: Any, **more: Any) -> None:
    ROWS.append(Row(name, event, stock, ours, explicit, **more))


row("an ordinary epoch", do.ordinary, "aligned", "aligned", "aligned")
row("micro-batches: a batch in parts, an update for each", do.in_parts, "that update", "that update", "aligned")
row(
    "break after an update",
    do.break_after_update,
    UNLESS_ALL_HELD,
    "aligned",
    "aligned",
)
row(
    "break before the update of the batch at hand",
    do.break_before_update,
    UNLESS_PERSISTENT,
    "aligned",
    "aligned",
)
row(
    "the same, with skip() before the break",
    do.break_with_skip,
    UNLESS_ALL_HELD,
    "aligned",
    "that skip",
)
row(
    "break one batch before the end",
    do.break_near_end,
    UNLESS_PERSISTENT,
    "aligned",
    "aligned",
)
row("break after part of a batch", do.break_inside_batch, "that update", "that update", "aligned", setups=ANY)
row(
    "break, and the old iterator is kept",
    do.break_and_keep,
    UNLESS_ALL_HELD,
    "aligned",
    "aligned",
)
row(
    "break with a batch at hand, and the old iterator is kept",
    do.break_and_keep_waiting,
    "next pass",
    "next pass",
    "aligned",
)
row(
    "an old iterator delivers after a new one began",
    do.go_on_with_kept,
    {
        "else": "next batch",
        "all fetched at once": "next update",
        "persistent": "next update",
        "persistent, all fetched at once": "next pass",
    },
    "next batch",
    "next batch",
)
row("a sample cannot be read; the loop goes on", do.error_go_on, "next update", "aligned", "aligned")
row("the same in the first batch", do.error_in_first, "next update", "aligned", "aligned")
row(
    "the same in the last batch",
    do.error_in_last,
    UNLESS_PERSISTENT,
    "aligned",
    "aligned",
)
row("a sample cannot be read; skip(), and the loop goes on", do.error_skip, "aligned", "that skip", "that skip")
row("the same in the first batch, with skip()", do.error_skip_in_first, "aligned", "that skip", "next update")
row(
    "a sample cannot be read; the previous batch is updated again",
    do.error_update_again,
    "that update",
    "that update",
    "next pass",
)
row(
    "a batch is skipped, the next cannot be read; the skipped one is updated",
    do.error_after_skip,
    "that update",
    "that update",
    "that skip",
)
row(
    "a sample cannot be read; a new pass begins",
    do.error_new_pass,
    UNLESS_PERSISTENT,
    "aligned",
    "aligned",
)
row("a validation loader inside the epoch", do.validate_plain, "aligned", "aligned", "aligned", setups=ANY)
row(
    "the training data without its sampler inside the epoch",
    do.validate_same_data,
    "aligned",
    "aligned",
    "aligned",
    setups=ANY,
)
row("a pass over .full() inside the epoch", do.validate_full_view, "aligned", "aligned", "aligned", setups=ANY)
row("skip() of the first batch", do.skipping("first"), "aligned", "aligned", "next update")
row("skip() of the middle batch", do.skipping("middle"), "aligned", "aligned", "that skip")
row("skip() of the last batch", do.skipping("last"), "aligned", "aligned", "that skip")
row("the first batch left out without skip()", do.leaving_out("first"), "next update", "next update", "aligned")
row("the middle batch left out without skip()", do.leaving_out("middle"), "next update", "next update", "aligned")
row(
    "the last batch left out without skip()",
    do.leaving_out("last"),
    UNLESS_PERSISTENT,
    "aligned",
    "aligned",
)
row(
    "the first batch left out without skip(), and a break",
    do.leaving_out_then_break,
    "next update",
    "next update",
    "aligned",
)
row(
    "a batch left out, and skip() one batch late",
    do.leaving_out_then_skip,
    "aligned",
    "aligned",
    "that skip",
    setups=ANY,
)
row("two updates for the first batch", do.twice_for("first"), "that update", "that update", "later update")
row("two updates for the middle batch", do.twice_for("middle"), "that update", "that update", "later update")
row("two updates for the last batch", do.twice_for("last"), "that update", "that update", "that update / next pass")
row(
    "part of the last batch a second time, drop_last",
    do.part_twice,
    "that update",
    "that update",
    "next pass",
    options={"drop_last": True},
    setups=ANY,
)
row(
    "losses for part of a middle batch",
    do.part_left_out,
    "that update",
    "that update",
    "aligned",
    setups=ANY,
    in_part=True,
)
row(
    "losses for part of the last batch",
    do.part_left_out_last,
    "that update",
    "that update",
    "aligned",
    setups=ANY,
    in_part=True,
)
row("the losses of two batches in one update", do.two_at_once, "that update", "that update", "aligned", setups=ANY)
row(
    "the loader is asked for more before the last update, drop_last",
    do.end_before_last_update,
    "aligned",
    "aligned",
    "aligned",
    options={"drop_last": True},
    setups=ANY,
)
row("zip(loader, loader)", do.zipped, "next pass", "next pass", "next batch")
row(
    "a loop over the loader inside a loop over it",
    do.nested,
    {
        "else": "next batch",
        "all fetched at once": "later update",
        "persistent": "aligned",
        "persistent, all fetched at once": "next pass",
    },
    {"else": "next batch", "persistent": "aligned"},
    "next batch",
)
row("next(iter(loader)) inside the epoch", do.look_inside, "next pass", "next pass", "next batch")
row("the same, and its iterator is kept", do.look_inside_kept, "next pass", "next pass", "next batch")
row("a loop that reads one batch ahead", do.one_ahead, "next update", "next update", "aligned")
PAIRS: dict[str, Any] = {"options": {"with_indices": True}}
row("with_indices=True, an ordinary epoch", do.ordinary, "-", "aligned", "-", **PAIRS)
row("with_indices=True, reads two ahead", do.two_ahead, "-", "aligned", "-", **PAIRS)
row("with_indices=True, updates in any order", do.backwards, "-", "aligned", "-", **PAIRS)
row("with_indices=True, a middle batch left out without skip()", do.leaving_out("middle"), "-", "aligned", "-", **PAIRS)
row("with_indices=True, two updates for a batch", do.twice_for("middle"), "-", "later update", "-", **PAIRS)
row(
    "in_order=False",
    do.ordinary,
    "next pass",
    "aligned",
    "-",
    options={"in_order": False},
    setups=("workers", "persistent"),
)
row(
    "a whole pass without updates",
    do.no_updates,
    {"else": "next pass", "workers": "aligned", "all fetched at once": "aligned"},
    "next pass",
    "next pass",
)
row("two whole passes without updates", do.no_updates_twice, "next pass", "next pass", "next pass")
row(
    "a peek, next(iter(loader)), before training",
    do.peek,
    UNLESS_ALL_HELD,
    "aligned",
    "aligned",
)
row(
    "a peek, and its iterator is kept",
    do.peek_kept,
    UNLESS_ALL_HELD,
    "aligned",
    "aligned",
)
row("a peek at three batches, and its iterator is kept", do.peek_three_kept, "next pass", "next pass", "aligned")
row("list(loader) first, then the updates", do.all_first, "that update", "that update", "aligned")
row(
    "one batch a pass: x = next(iter(loader)); update",
    do.one_batch_a_pass,
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
    "a batch sampler around ours that sorts",
    do.ordinary,
    "next pass",
    "aligned",
    "aligned",
    options={"batch_sampler": lambda train: SortedBatches(train.sampler)},
    setups=ANY,
)
row(
    "a batch sampler that ignores ours",
    do.ordinary,
    "next pass",
    "next pass",
    "next pass",
    options={"batch_sampler": lambda train: BatchSampler(range(N), BATCH, False)},
    setups=ANY,
)
row(
    "torch's BatchSampler around ours",
    do.ordinary,
    "aligned",
    "aligned",
    "aligned",
    options={"batch_sampler": lambda train: BatchSampler(train.sampler, BATCH, False)},
    setups=ANY,
)
row(
    "a sampler around ours that reorders",
    do.ordinary,
    "next pass",
    "-",
    "aligned",
    options={"sampler": lambda train: Reversed(train.sampler)},
    setups=ANY,
)
row("batches drawn from our sampler beforehand", do.drawn_before, "next pass", "next pass", "aligned", setups=ANY)
row("no loader: a loop over the sampler itself", do.hand_made, "that update", "-", "aligned", setups=("no workers",))
row(
    "a collate that drops a sample of each batch",
    do.ordinary,
    "next pass",
    "next pass",
    "aligned",
    options={"collate_fn": drop_first},
    setups=ANY,
    in_part=True,
)
row(
    "a collate that drops a sample of the last batch",
    do.ordinary,
    "later update",
    "later update",
    "aligned",
    options={"collate_fn": drop_in_short_batches},
    setups=ANY,
    in_part=True,
)
row(
    "a collate that doubles its samples",
    do.ordinary,
    "next pass",
    "next pass",
    "later update",
    options={"collate_fn": twice},
    setups=ANY,
)
row(
    "a __getitems__ that loses a sample",
    do.ordinary,
    "next pass",
    "next pass",
    "aligned",
    data=Fewer,
    setups=ANY,
    warm=(0,),
    in_part=True,
)
row(
    "update() after the last batch had its own",
    do.update_after_end,
    "that update",
    "that update",
    "that update / next pass",
)
row("update() after a break", do.update_after_break, "that update", "that update", "next pass")
row("update() before any batch", do.update_first, "that update", "that update", "later update", setups=ANY)

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
    "a custom collate_fn": ({"collate_fn": as_dict}, Numbers),
    "a custom collate_fn, 2 workers": ({**WORKERS, "collate_fn": as_dict}, Numbers),
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
