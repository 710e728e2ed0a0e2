"""What may happen inside a loop, one event a function. Each returns True where the loop leaves its pass.

Some events are misuse: there the package must refuse, or get everything right.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

import infobatch

from .oracle import Batch, check_step
from .session import Session
from .worlds import Items, with_loader

Event = Callable[[Session, Iterator[Any], Batch], bool]


def plain(session: Session, _: Iterator[Any], batch: Batch) -> bool:
    session.update(batch)
    return False


def look(session: Session, _: Iterator[Any], batch: Batch) -> bool:
    session.look()
    session.update(batch)
    if session.lot.random() < 0.5:
        session.look()
    return False


def leave_out(session: Session, _: Iterator[Any], batch: Batch) -> bool:
    """A ``continue`` without skip()."""
    return False


def skip(session: Session, _: Iterator[Any], batch: Batch) -> bool:
    session.skip(batch)
    return False


def leave(session: Session, _: Iterator[Any], batch: Batch) -> bool:
    """A break: before the update, after it, or after a skip()."""
    before = session.lot.choice(["update", "skip", "nothing"])
    if before == "update":
        session.update(batch)
    elif before == "skip":
        session.skip(batch)
    return True


def leave_and_keep(session: Session, iterator: Iterator[Any], batch: Batch) -> bool:
    """A break, and the old iterator stays open."""
    session.kept.append(iterator)
    return leave(session, iterator, batch)


def go_on_with_kept(session: Session, iterator: Iterator[Any], batch: Batch) -> bool:
    """An iterator from before delivers again."""
    session.update(batch)
    if session.kept:
        raw = next(session.kept[-1], None)
        if raw is not None:
            session.update(session.receive(raw))
    return False


def update_twice(session: Session, _: Iterator[Any], batch: Batch) -> bool:
    session.update(batch)
    session.follow()
    if session.oracle.epoch == batch.plan.epoch or session.world.mode == "whole":
        session.update(batch)
        return False
    losses = session.losses(batch.ids, batch.plan.epoch)  # the epoch is over: with indices they are early for the next
    session.oracle.weaken()
    session.oracle.offer(batch.ids, losses)
    channels = {name: session.losses.channel(batch.ids, 0) for name in session.train.method.channels}
    session.train.update(losses, batch.indices, **channels)
    return False


def update_late(session: Session, iterator: Iterator[Any], batch: Batch) -> bool:
    """Two batches are updated in the wrong order."""
    raw = next(iterator, None)
    if raw is not None:
        session.update(session.receive(raw))
    session.update(batch)
    return False


def read_all_first(session: Session, iterator: Iterator[Any], batch: Batch) -> bool:
    """The rest of the epoch is fetched before its updates."""
    batches = [batch, *(session.receive(raw) for raw in iterator)]
    for one in batches:
        session.update(one)
    return False


def wrong_number(session: Session, _: Iterator[Any], batch: Batch) -> bool:
    """Losses for a part of the batch, or for twice as many samples."""
    losses = session.losses(batch.ids, batch.plan.epoch)
    wrong = losses[1:] if session.lot.random() < 0.5 and len(losses) > 1 else torch.cat([losses, losses])
    try:
        session.train.update(wrong)
    except infobatch.InfoBatchError:
        session.update(batch, losses)  # nothing was taken
        return False
    session.oracle.weaken()
    session.oracle.offer(batch.ids, losses)
    return False


def mix_indices(session: Session, _: Iterator[Any], batch: Batch) -> bool:
    """An update with indices in a loop that has none, or the other way round."""
    losses = session.losses(batch.ids, batch.plan.epoch)
    indices = session.train.batch_indices if session.world.mode == "whole" else None
    check_step(
        session.give(batch.ids, losses, indices), losses, batch.plan.weights[batch.ids], [0.0]
    )  # the step size is known once all of a pass comes in one way
    return False


def peek(session: Session, _: Iterator[Any], batch: Batch) -> bool:
    """next(iter(loader)) inside the epoch."""
    session.update(batch)
    iterator = session.batches()
    if session.lot.random() < 0.5:
        session.kept.append(iterator)
    next(iterator, None)
    return session.lot.random() < 0.5


def nested(session: Session, _: Iterator[Any], batch: Batch) -> bool:
    """A pass inside a pass."""
    session.update(batch)
    for raw in session.batches():
        session.update(session.receive(raw))
    return session.lot.random() < 0.5


def validate(session: Session, _: Iterator[Any], batch: Batch) -> bool:
    """A pass that does not train: over full(), or over the data set without the sampler."""
    view = session.train.full()
    size = session.world.batch
    if session.lot.random() < 0.5:
        for _raw in torch.utils.data.DataLoader(view, batch_size=size, sampler=view.sampler):
            view.update(torch.ones(size))
    else:
        for _raw in torch.utils.data.DataLoader(session.train, batch_size=size):
            pass
    session.update(batch)
    return False


def cannot_read(session: Session, iterator: Iterator[Any], batch: Batch) -> bool:
    """A sample of what is left cannot be read; the loop catches the error and goes on."""
    data, world = session.world.data, session.world
    session.update(batch)
    if not isinstance(data, Items) or session.loader is None or world.options.get("num_workers"):
        return False
    left = batch.plan.indices[~session.oracle.done()[batch.plan.indices]].tolist()
    if not left:
        return False
    data.broken.add(session.lot.choice(left))
    try:
        return _read_on(session, iterator)
    finally:
        data.broken.clear()


def _read_on(session: Session, iterator: Iterator[Any]) -> bool:
    while True:
        try:
            raw = next(iterator, None)
        except OSError as error:
            traceback.clear_frames(error.__traceback__)
            session.world.data.broken.clear()
            then = session.lot.choice(["go on", "skip", "leave"])
            if then == "skip":
                session.train.skip()
            return then == "leave"
        if raw is None:
            return False
        session.update(session.receive(raw))


def save(session: Session, _: Iterator[Any], batch: Batch) -> bool:
    """A checkpoint before or after the update, which nobody reads."""
    if session.lot.random() < 0.5:
        session.save()
        session.update(batch)
    else:
        session.update(batch)
        session.save()
    return False


def go_back(session: Session, _: Iterator[Any], batch: Batch) -> bool:
    """The same object loads a state of a moment ago."""
    state, snapshot = session.save()
    session.update(batch)
    session.train.load_state_dict(state)
    session.oracle.restore(snapshot)
    return True


def go_on_elsewhere(session: Session, _: Iterator[Any], batch: Batch) -> bool:
    """A new object loads the state and goes on, perhaps with another loader."""
    session.update(batch)
    state, snapshot = session.save()
    world = session.world
    if session.lot.random() < 0.5 and not session.where.ne(torch.arange(world.size)).any():
        world = with_loader(session.lot, world)
    session.resume(state, snapshot, world)
    return True


def other_way(session: Session, _: Iterator[Any], batch: Batch) -> bool:
    """The loop changes between update(loss) and update(loss, indices), beginning with the next pass."""
    session.update(batch)
    if session.loader is not None:
        mode = session.lot.choice(["whole", "named", "parts", "ahead"])
        session.world = replace(session.world, mode=mode)
    return True


FAIR: dict[str, Event] = {
    "plain": plain,
    "look": look,
    "skip": skip,
    "leave": leave,
    "validate": validate,
    "save": save,
    "go_back": go_back,
    "go_on_elsewhere": go_on_elsewhere,
}
"""What a careful loop may do."""

MISUSE: dict[str, Event] = {
    "leave_out": leave_out,
    "leave_and_keep": leave_and_keep,
    "go_on_with_kept": go_on_with_kept,
    "update_twice": update_twice,
    "update_late": update_late,
    "read_all_first": read_all_first,
    "wrong_number": wrong_number,
    "mix_indices": mix_indices,
    "peek": peek,
    "nested": nested,
    "cannot_read": cannot_read,
    "other_way": other_way,
}
"""What loops do by mistake or in need."""


def eventful_pass(session: Session, events: dict[str, Event], share: float) -> None:
    """One pass in which something happens at a share of the batches."""
    if session.world.mode == "ahead" or session.lot.random() > 0.5 + share:
        session.ordinary_pass()
        return
    iterator = session.batches()
    arrived = False
    for raw in iterator:
        arrived = True
        batch = session.receive(raw)
        event: Event = plain
        if session.lot.random() < share:
            event = events[session.lot.choice(sorted(events))]
        if event(session, iterator, batch):
            return
    session.follow(may_be_empty=not arrived)
