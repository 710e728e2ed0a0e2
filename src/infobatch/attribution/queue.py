"""Which samples still wait for their loss: the books of one pass over an epoch.

A loss arrives as a bare vector, and a loader fetches ahead, so someone must know whose losses these are. A
``Pass`` is told in one of three ways.

* A stock loader takes indices from the sampler and says nothing more. It delivers them in that order, and its
  iterator counts the batches, so the batch at hand is the last one counted. ``take`` gives the oldest sample that
  waits, and wants it to be of that batch.
* ``infobatch.DataLoader`` brings each batch's indices along (``deliver``).
* The caller carries them; then nothing is taken from here.

Where batches come in the order of the plan, a ``range`` of places in it says whose losses these are, and weights and
losses lie there side by side; otherwise it is a tensor of indices.

Losses may come in parts of a batch. Whether a part was right shows when the batch is complete: until then it is
``unsure``, and when the rest never comes it is ``doubtful`` and must not become a score.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from operator import length_hint
from typing import Any

import torch
from torch import Tensor

from ..epoch.slice import Walk, Where
from ..errors import MisalignedError, counted, message
from .stock_loader import Asker

ONE_ITERATOR = "one open iterator over the training data"
ONE_ITERATOR_REMEDY = "Finish a pass before you begin the next; for passes that are no training use .full()."
STEPPED = message(ONE_ITERATOR, "a step of an older one after a newer one had begun", ONE_ITERATOR_REMEDY)


class Pass:
    """One walk over (what remains of) an epoch: what was handed out, what came back."""

    def __init__(self, epoch: int, walk: Walk, asker: Asker, last: Pass | None = None) -> None:
        self.epoch = epoch
        self.walk = walk
        self.asker = asker
        self.size = walk.size
        self.total = asker.delivers(self.size)
        """How many samples will be delivered: fewer than ``size`` where the loader drops its last batch."""
        self.taken = 0
        self.superseded = False
        self.void = False
        """Whether it was over a plan that is not to be."""
        self.closed = False
        self.unsure: list[Where] = []
        self._before: tuple[int, list[Where]] = (0, [])
        """At the last taking: what it left of its batch, and what was unsure before."""
        self.doubtful: list[Where] = []

        self._chunk: list[int] = []
        self._hand: Iterator[int] = iter(())
        self._behind = 0
        self._walked = False

        self.carried = False
        self.lookahead = 0
        self.exhausted = False
        self.brought = 0
        """How many samples came with their indices beside them."""
        self.waiting: deque[Where] = deque()
        self.of = 0
        """The size of the batch that samples were taken from last."""
        self._parted = False
        """Whether some of it still wait."""
        self._next: int | None = 0
        """Where the plan goes on, as long as batches come in its order."""

        self.holder = asker.ref
        """The loop's own iterator: as long as it lives, it may deliver."""
        self._looked = (0, 0)

        self._older: list[Older] = []
        self._reused = False
        if last is not None:
            self._follow(last)

    # ---- handing out -------------------------------------------------------------------------------------

    def hand_out(self) -> Iterator[Iterator[int]]:
        """The indices, chunk by chunk. The list's own iterator does the walking, so counting costs nothing."""
        try:
            for chunk in self.walk.chunks(self._needed):
                self._chunk = chunk.tolist()
                self._behind += len(self._chunk)
                self._hand = iter(self._chunk)
                yield self._hand
                if self.superseded:
                    raise MisalignedError(STEPPED)
            self._walked = True
        finally:
            self.closed = True

    @property
    def handed(self) -> int:
        return self._behind - length_hint(self._hand)

    def _needed(self) -> int:
        """A loader runs ahead by as much as it prefetches: what lies further back has had its losses."""
        return max(self.taken, self._behind - (self.asker.lead + 2) * self.asker.batch_size)

    def supersede(self) -> None:
        """A newer pass has begun: let this one's iterator run dry, so that its next step raises."""
        if not self.superseded and not self.closed:
            self.superseded = True
            self._chunk.clear()

    def carry(self, holder: Any, lookahead: int) -> None:
        """From now on each batch brings its indices."""
        self.carried, self.lookahead, self.holder = True, lookahead, weakref.ref(holder)

    def deliver(self, indices: Tensor) -> None:
        self.brought += indices.numel()
        if self._next is not None:
            ahead = range(self._next, self._next + indices.numel())
            if self.walk.holds(ahead, indices):
                self._next = ahead.stop
                self.waiting.append(ahead)
                return
            self._next = None  # out of the plan's order from here on
        self.waiting.append(indices)

    def latest(self) -> Tensor:
        """What a loader whose batches say nothing delivered last. Counts those lost to an error, too."""
        batches, size = self._delivered(), self.asker.batch_size
        return self.walk.at(range((batches - 1) * size, min(batches * size, self.total)))

    # ---- taking back -------------------------------------------------------------------------------------

    def take(self, count: int) -> Where:
        """The samples that the next ``count`` losses belong to."""
        if self._reused or self._older:
            self._check_older()
        if self.carried:
            self._check_waiting(count)
            indices, rest = self._from_front(count)
        else:
            indices, rest = self._from_plan(count, self._check_delivered(count))
        self._before = rest, self.unsure
        if rest or (self.lookahead > 1 and self.exhausted and self.waiting):
            self.unsure = [*self.unsure, indices]
        elif self.unsure:
            self.unsure = []
        self.taken += count
        return indices

    def put_back(self, where: Where) -> None:
        """What was just taken could not be used: it waits again."""
        rest, self.unsure = self._before
        self._parted = len(where) + rest < self.of
        self.taken -= len(where)
        if self.carried:
            self.waiting.appendleft(_joined(where, self.waiting.popleft()) if rest else where)

    def drop(self, count: int | None) -> Where:
        """The samples of the oldest batch that waits, or its first ``count``: they will get no loss."""
        if self._reused or self._older:
            self._check_older()
        if self.carried:
            if not self.waiting:
                raise MisalignedError(_nothing_waits(count))
            indices, rest = self._from_front(len(self.waiting[0]) if count is None else count)
        else:
            batches = self._delivered()
            left = self._in_front(batches)
            if left <= 0:
                raise MisalignedError(_nothing_waits(count))
            indices, rest = self._from_plan(left if count is None else count, left)
            self._looked = (batches, self.asker.yielded())
        if not rest:
            self.unsure.clear()
        self.taken += len(indices)
        self.walk.took(indices)
        return indices

    def _check_waiting(self, count: int) -> None:
        """A loop that reads ahead has one batch at hand and ``lookahead`` more; at the end it runs out of them."""
        waiting = len(self.waiting)
        if not waiting:
            raise MisalignedError(_nothing_waits(count))
        expected = max(self.lookahead, 1) if self.exhausted else self.lookahead + 1
        if waiting > expected or (waiting < expected and not self.exhausted):
            self._doubt()
            raise MisalignedError(
                message(
                    f"{counted(expected, 'delivered batch')} waiting for losses at an update",
                    f"{waiting} (the oldest still lacks {counted(len(self.waiting[0]), 'loss')})",
                    "A batch you leave out wants train_data.skip(); a loop that reads ahead wants "
                    "infobatch.DataLoader(..., lookahead=n); a collate_fn must not drop samples.",
                )
            )

    def _from_front(self, count: int) -> tuple[Where, int]:
        front = self.waiting[0]
        rest = len(front) - count
        if rest < 0:
            raise MisalignedError(_too_many(count, len(front)))
        self._part(len(front), rest)
        if rest == 0:
            return self.waiting.popleft(), 0
        self.waiting[0] = front[count:]
        return front[:count], rest

    def _check_delivered(self, count: int) -> int:
        """That the oldest sample without a loss is of the batch delivered last; how many of it still wait."""
        batches = self._delivered()
        left = self._in_front(batches)
        behind = (batches - 1) * self.asker.batch_size - self.taken
        if behind > 0:
            self._doubt()
            raise MisalignedError(
                message(
                    "every earlier batch with its losses at an update",
                    f"{behind} samples without (batch {batches} is at hand, losses came for {self.taken} samples)",
                    "A batch you leave out, or one lost to an error, wants train_data.skip(); update() wants every "
                    "batch whole; a loop that reads ahead wants infobatch.DataLoader(..., lookahead=n).",
                )
            )
        yielded = self.asker.yielded()
        lost = batches > self._looked[0] and yielded == self._looked[1]  # counted, but an error came in its place
        if left <= 0 or lost:
            raise MisalignedError(_nothing_waits(count))
        self._looked = (batches, yielded)
        return left

    def _from_plan(self, count: int, left: int) -> tuple[Where, int]:
        if count > left:
            raise MisalignedError(_too_many(count, left))
        self._part(left, left - count)
        return self.walk.whose(range(self.taken, self.taken + count)), left - count

    def _part(self, left: int, rest: int) -> None:
        """Samples are taken of a batch that has ``left`` waiting, and then ``rest``."""
        if not self._parted:
            self.of = left
        self._parted = rest > 0

    def _delivered(self) -> int:
        """How many batches the stock loader has delivered, those lost to an error included."""
        asker = self.asker
        if asker.unseen:
            raise MisalignedError(
                message(
                    "a loader that is seen to deliver in the order of train_data.sampler",
                    asker.unseen,
                    "Use infobatch.DataLoader, which carries the indices, or pass them: update(loss, indices).",
                )
            )
        if self.taken >= self.total:
            return self._batches
        delivered = asker.delivered(self.handed)
        if delivered is None:
            raise MisalignedError(
                message(
                    "losses while the loader's iterator is open",
                    f"some after it was gone ({self.total - self.taken} of {self.total} samples without a loss)",
                    "Update inside the loop, or keep the iterator: batches = iter(loader). infobatch.DataLoader does "
                    "not need it.",
                )
            )
        return min(delivered, self._batches)

    @property
    def _batches(self) -> int:
        return self.asker.batches(self.total)

    def _in_front(self, batches: int) -> int:
        """How many samples of the oldest batch that waits have no loss yet."""
        size = self.asker.batch_size
        return min(min(batches * size, self.total) - self.taken, size - self.taken % size)

    def _doubt(self) -> None:
        self.doubtful += self.unsure
        self.unsure = []

    # ---- older iterators ---------------------------------------------------------------------------------

    def _follow(self, last: Pass) -> None:
        """Look at what was open when this pass began: a loss could still be meant for a batch of that."""
        shared = not last.carried and last.asker.persistent and last.asker.iterator is self.asker.iterator
        if shared:  # its counters start anew, so only what was handed out tells how many batches came
            least, most = last._came_at_least(), last._came_at_most()
            waited = most * last.asker.batch_size > last.taken and last.taken < last.total
            looked = last.epoch == self.epoch and last.taken == 0 and least == most == 1
            self._reused = waited and not looked
        older, last._older = last._older, []
        if last.taken:
            for each in older:
                each.left = []  # the loop went on with a newer one: what waited was given up
        if not shared and last.holder is not None:
            older.append(Older(last.holder, None if last.carried else last.asker, last._left_waiting()))
        self._older = [each for each in older if each.open]

    def _came_at_most(self) -> int:
        return self._batches if self.handed == self.size else self.handed // self.asker.batch_size - self.asker.lead

    def _came_at_least(self) -> int:
        return max(min(self.asker.batches(self.handed) - self.asker.lead, self._batches), 1)

    def _check_older(self) -> None:
        if self._reused or any(self._is_rival(each) for each in self._older):
            raise MisalignedError(
                message(
                    ONE_ITERATOR,
                    "an older one that is open still, with a batch that waits or came since",
                    f"{ONE_ITERATOR_REMEDY} Before a break, skip() the batch you leave; with infobatch.DataLoader "
                    "that is needed only while the older iterator is kept.",
                )
            )

    def _is_rival(self, other: Older) -> bool:
        """Whether a loss could be meant for a batch of that one."""
        if not other.open:
            return False
        if other.went_on:
            return True
        if self.taken or other.left == []:
            return False
        return other.left != self._first()  # the same samples: no matter whose they are

    def _left_waiting(self) -> list[int] | None:
        """The samples of the one batch that waits; none; or None for what is more than a look at the first batch."""
        if self.carried:
            waits, look = bool(self.waiting), len(self.waiting) == 1
        else:  # a batch lost to an error waits for nothing, so what counts is what came since the last loss
            came, size = self.asker.yielded(), self.asker.batch_size
            waits = came > self._looked[1] or self.taken < min(self._looked[0] * size, self.total)
            look = came == 1
        if not waits:
            return []
        if not look or self.taken:
            return None
        return self._first()

    def _first(self) -> list[int]:
        """The samples of the batch that waits first."""
        where: Where = self.waiting[0] if self.carried and self.waiting else range(self.asker.batch_size)
        samples: list[int] = (where if isinstance(where, Tensor) else self.walk.at(where)).tolist()
        return samples

    # ---- ends --------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Every sample that will be delivered has its loss."""
        return self.taken >= self.total or (self.carried and self.exhausted and not self.waiting)

    @property
    def over(self) -> bool:
        """The loader's own iterator is through, as far as that can be seen; ``len`` may speak of the next epoch."""
        if self.asker.ref is not None and not self.carried:
            return self.asker.iterator is None or (self.finished and self.asker.persistent)
        return self.exhausted if self.carried else self.closed

    @property
    def open(self) -> bool:
        """Whether an iterator is left that may deliver, as far as can be seen: workers that persist keep theirs."""
        if self.exhausted or self.superseded or (self.asker.persistent and not self.carried):
            return False
        return not self.closed if self.holder is None else self.holder() is not None

    @property
    def whole(self) -> bool:
        """Every batch was delivered, and that is certain. A look at the only batch does not count."""
        if self.carried:
            return self.exhausted
        if self.asker.workers:
            return 1 < self._batches <= (self.asker.delivered(self.handed) or 0)
        return self._walked and self.size > self.asker.batch_size

    def check_end(self) -> None:
        """At the end of a pass: no batch may have got a part of its losses."""
        if self.unsure:
            some = sum(len(indices) for indices in self.unsure)
            self._doubt()
            raise MisalignedError(
                message(
                    "a loss for every sample of a batch",
                    f"{counted(some, 'loss')} and then no more, in epoch {self.epoch}; they are left out",
                    "The rest of a batch wants train_data.skip(); a collate_fn must not drop samples.",
                )
            )


class Older:
    """An iterator of an earlier pass. As long as it is open, a loss could be meant for a batch of it."""

    def __init__(self, holder: weakref.ref[Any], asker: Asker | None, left: list[int] | None) -> None:
        self._holder = holder
        self._asker = asker
        """None where batches carry their indices: then a step of it raises by itself."""
        self._came = 0 if asker is None else asker.yielded()
        self.left = left
        """What of it waits for losses, as ``Pass._left_waiting`` says it."""

    @property
    def open(self) -> bool:
        return self._holder() is not None

    @property
    def went_on(self) -> bool:
        """A batch came out of it since."""
        return self._asker is not None and self._asker.yielded() != self._came


def _joined(front: Where, rest: Where) -> Where:
    """Two parts of one batch."""
    if isinstance(front, range) and isinstance(rest, range):
        return range(front.start, rest.stop)
    assert isinstance(front, Tensor)
    assert isinstance(rest, Tensor)
    return torch.cat([front, rest])


def _nothing_waits(count: int | None) -> str:
    return message(
        "a delivered batch that waits for its losses",
        f"{counted(count, 'loss')} and no batch" if count else "none",
        "Call update() once for each batch of the training loader, and only for those.",
    )


def _too_many(count: int, left: int) -> str:
    return message(
        f"at most {counted(left, 'loss')}, what the batch in front still waits for",
        str(count),
        "Call update() once for each batch, with one loss a sample.",
    )
