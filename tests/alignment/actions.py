"""What loops do: right, wrong, and in between. Each goes wrong where it calls ``loop.mark()``."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch
from loop import BATCH, BROKEN, Loop, Numbers, batches_in, load, middle, value
from torch.utils.data import BatchSampler


def ordinary(loop: Loop) -> None:
    loop.epoch()


def in_parts(loop: Loop) -> None:
    for batch in loop.batches():
        for part in value(batch).split(3):
            loop.mark()
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
    batches = loop.batches()
    last = batches_in(loop) - 2
    for step, batch in enumerate(batches):
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
            loop.mark()
            loop.update(value(batch)[:3])
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


def broken(loop: Loop, position: int) -> None:
    BROKEN.value = int(loop.train.plan().indices[position])


def with_error(loop: Loop, position: int, then: Callable[[Loop, Any], None]) -> None:
    broken(loop, position)
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
    with_error(loop, 20, lambda loop, batch: None)


def error_in_first(loop: Loop) -> None:
    with_error(loop, 0, lambda loop, batch: None)


def error_in_last(loop: Loop) -> None:
    with_error(loop, loop.train.plan().kept - 1, lambda loop, batch: None)


def error_skip(loop: Loop) -> None:
    with_error(loop, 20, lambda loop, batch: loop.skip())


def error_skip_in_first(loop: Loop) -> None:
    with_error(loop, 0, lambda loop, batch: loop.skip())


def error_update_again(loop: Loop) -> None:
    with_error(loop, 20, lambda loop, batch: loop.update(batch))


def error_after_skip(loop: Loop) -> None:
    """The batch before the lost one was skipped, so an update for it is wrong twice."""
    broken(loop, 20)
    batches = loop.batches()
    loop.update(next(batches))
    batch = next(batches)
    loop.mark()
    try:
        loop.skip()
        next(batches)
    except OSError as error:
        traceback.clear_frames(error.__traceback__)
    finally:
        BROKEN.value = -1
    loop.mark()
    loop.update(batch)


def error_new_pass(loop: Loop) -> None:
    broken(loop, 20)
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
        if middle(step):
            loop.mark()
        loop.update(value(batch)[3:] if middle(step) else batch)


def part_left_out_last(loop: Loop) -> None:
    for step, batch in enumerate(loop.batches()):
        last = _at(loop, "last", step)
        if last:
            loop.mark()
        loop.update(value(batch)[1:] if last else batch)


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


def backwards(loop: Loop) -> None:
    for batch in list(loop.batches())[::-1]:
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
