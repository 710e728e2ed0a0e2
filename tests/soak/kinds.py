"""The kinds of cases: each draws a set-up from a lot, plays it, and raises a FaultError where something is wrong."""

from __future__ import annotations

import contextlib
import random
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import infobatch

from . import crashes, events, ranks, worlds
from .oracle import FaultError, differ
from .session import Fresh, Known, Session, twin_of
from .tally import Tally

Case = Callable[[random.Random, Tally], None]


def fresh_losses(lot: random.Random, world: worlds.World) -> Fresh:
    return Fresh(lot.randint(0, 2**31), world.dtype, lot.choice([0.0, 0.0, 0.05, 0.3]))


def play(session: Session, tally: Tally, step: Callable[[], None], again: int = 3) -> None:
    """Run a training; after a refusal the user runs the cell again, up to ``again`` times."""
    for _ in range(again):
        try:
            step()
            break
        except infobatch.InfoBatchError as error:
            tally.refuse(error)
            session.oracle.weaken()
        finally:
            tally.updates = session.updates
    with contextlib.suppress(infobatch.InfoBatchError):  # losses that are in doubt may have no scores to show
        session.finish()


def loop(lot: random.Random, tally: Tally) -> None:
    """Loops with skips, breaks, looks, checkpoints and validation: all of it allowed."""
    _loop(lot, tally, events.FAIR)


def misuse(lot: random.Random, tally: Tally) -> None:
    """Loops that do what they should not, or that lose samples: late and double updates, nested passes, peeks."""
    _loop(lot, tally, events.FAIR | events.MISUSE)


def _loop(lot: random.Random, tally: Tally, happenings: dict[str, events.Event]) -> None:
    world = worlds.draw(lot)
    tally.world = world.describe()
    session = Session(world, fresh_losses(lot, world), lot)
    share = lot.choice([0.02, 0.1, 0.3])

    def cell() -> None:
        for _ in range(session.train.epoch, world.epochs):
            events.eventful_pass(session, happenings, share)

    play(session, tally, cell)


def ordinary(lot: random.Random, tally: Tally) -> None:
    """Ordinary loops over every set-up: nothing may be refused here but arguments."""
    world = worlds.draw(lot, plain=lot.random() < 0.5)
    tally.world = world.describe()
    session = Session(world, fresh_losses(lot, world), lot)
    play(session, tally, session.cell, again=1)
    fits = world.loader == "ours" or (world.in_order and world.mode != "parts")
    if tally.refusals and fits and not world.drop_last:
        raise FaultError(f"an ordinary loop was refused: {tally.refusals[0]}")


def workers(lot: random.Random, tally: Tally) -> None:
    """Ordinary and eventful loops with worker processes: persistent or not, prefetching, out of order."""
    world = worlds.draw(lot, workers=1.0)
    tally.world = world.describe()
    session = Session(world, fresh_losses(lot, world), lot)
    happenings = events.FAIR | events.MISUSE if lot.random() < 0.5 else {"plain": events.plain}

    def cell() -> None:
        for _ in range(session.train.epoch, min(world.epochs, 3)):
            events.eventful_pass(session, happenings, 0.1)

    play(session, tally, cell, again=2)


def shuffled_list(lot: random.Random, tally: Tally) -> None:
    """A list that is shuffled in place between two epochs: scores belong to positions."""
    world = worlds.draw(lot, workers=0.0, data=("list",))
    tally.world = world.describe()
    session = Session(world, fresh_losses(lot, world), lot)

    def cell() -> None:
        for _ in range(session.train.epoch, world.epochs):
            session.ordinary_pass(lot.randint(1, 10) if lot.random() < 0.2 else None)
            lot.shuffle(world.data)
            session.where[torch.tensor(world.data)] = torch.arange(world.size)

    play(session, tally, cell)


def resume(lot: random.Random, tally: Tally) -> None:
    """Stop at random steps, load the state into a new object, go on with other loaders; compare with a twin."""
    world = worlds.draw(lot, workers=0.01, plain=True)
    while world.method.score != "loss":
        world = worlds.draw(lot, workers=0.01, plain=True)
    tally.world = world.describe()
    losses = Known(lot.randint(0, 2**20), world.size, world.dtype, lot.choice([0.0, 0.0, 0.1]))
    session = Session(world, losses, lot)
    changes = lot.random() < 0.6

    def train() -> None:
        with tempfile.TemporaryDirectory() as folder:
            while session.train.epoch < world.epochs:
                steps = -(-world.size // session.world.batch)
                session.ordinary_pass(lot.randint(1, steps) if lot.random() < 0.5 else None)
                state, snapshot = session.save()
                if lot.random() < 0.3:
                    infobatch.save(state, Path(folder, "state.pt"))
                    state = infobatch.load(Path(folder, "state.pt"))
                other = worlds.with_loader(lot, session.world, plain=True) if changes else session.world
                session.resume(state, snapshot, other)
                tally.world = f"{world.describe()}; at last {session.world.describe()}" if changes else tally.world

    play(session, tally, train, again=1)
    if tally.refusals:
        raise FaultError(f"a resumed training was refused: {tally.refusals[0]}")
    plans, scores = twin_of(world, losses)
    for seen, right in zip(session.oracle.plans, plans, strict=False):
        if seen is not None and not (torch.equal(seen.indices, right.indices) and torch.equal(seen.table, right.table)):
            raise FaultError(f"the plan of epoch {right.epoch} is not that of the uninterrupted twin")
    if differ(session.train.scores, scores).any():
        raise FaultError("the scores are not those of the uninterrupted twin")


def threads(lot: random.Random, tally: Tally) -> None:
    """A thread writes the state while the training goes on: the file holds the moment of state_dict()."""
    world = worlds.draw(lot, workers=0.0)
    tally.world = world.describe()
    session = Session(world, fresh_losses(lot, world), lot)
    with tempfile.TemporaryDirectory() as folder:
        written: list[tuple[Path, dict[str, Any], threading.Thread]] = []

        def cell() -> None:
            for epoch in range(session.train.epoch, world.epochs):
                session.ordinary_pass(lot.randint(1, 4) if lot.random() < 0.5 else None)
                state, snapshot = session.save()
                path = Path(folder, f"{len(written)}-{epoch}.pt")
                thread = threading.Thread(target=infobatch.save, args=(state, path))
                thread.start()
                written.append((path, snapshot, thread))

        try:
            play(session, tally, cell)
        finally:
            for _, _, thread in written:
                thread.join()
        for path, snapshot, _ in written:
            reader = Session(world, session.losses, lot)
            reader.oracle.given = session.oracle.given
            reader.resume(infobatch.load(path), snapshot)


@dataclass(frozen=True)
class Kind:
    """A kind of case: how to play it, how often it is drawn, and how many seconds it may take."""

    play: Case
    share: float
    patience: float = 60.0

    @property
    def summary(self) -> str:
        return (self.play.__doc__ or "").strip().partition("\n")[0]


KINDS: dict[str, Kind] = {
    "ordinary": Kind(ordinary, 3.0),
    "loop": Kind(loop, 4.0),
    "misuse": Kind(misuse, 6.0),
    "resume": Kind(resume, 4.0),
    "shuffled_list": Kind(shuffled_list, 1.0),
    "interrupt": Kind(crashes.interrupt, 4.0),
    "kill": Kind(crashes.kill, 0.6, 120.0),
    "files": Kind(crashes.files, 1.0),
    "states": Kind(crashes.states, 2.0),
    "ranks": Kind(ranks.ranks, 0.4, 120.0),
    "threads": Kind(threads, 0.5),
    "workers": Kind(workers, 0.3),
}
"""By name."""


def warm_up() -> None:
    """Do once what torch does at the first use of something, before cases are forked."""
    session = Session(worlds.draw(random.Random(0)), Fresh(0, torch.float32), random.Random(0))
    session.ordinary_pass()
    torch.optim.SGD(torch.nn.Linear(1, 1).parameters())  # the first one makes torch import for a second
