"""Kinds in which the training is stopped: interrupts inside the package, kill -9, damaged files, foreign states."""

from __future__ import annotations

import contextlib
import copy
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import infobatch

from . import worlds
from .oracle import FaultError, differ
from .session import Fresh, Known, Session
from .tally import Tally

PACKAGE = os.path.dirname(infobatch.__file__)


@contextlib.contextmanager
def at_line(count: int, then: Callable[[], Any]) -> Iterator[list[int]]:
    """Call ``then`` before the line of the package that is executed as number ``count`` from here on.

    Yields a list that holds the number of lines so far, and the place once it was reached.
    """
    seen: list[Any] = [0]

    def trace_lines(frame: Any, event: str, _: Any) -> Any:
        if event == "line":
            seen[0] += 1
            if seen[0] == count:
                seen.append(f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}")
                then()
        return trace_lines

    def trace_calls(frame: Any, _: str, __: Any) -> Any:
        return trace_lines if frame.f_code.co_filename.startswith(PACKAGE) and not seen[0] > count >= 1 else None

    before = sys.gettrace()
    sys.settrace(trace_calls)
    try:
        yield seen
    finally:
        sys.settrace(before)


def _interrupt() -> None:
    raise KeyboardInterrupt


def interrupt(lot: random.Random, tally: Tally) -> None:
    """Ctrl-C at a random line of the package; then the cell is run again, as in a notebook."""
    world = worlds.draw(lot, workers=0.0)
    session = Session(world, Fresh(lot.randint(0, 2**31), world.dtype), lot)
    session.looks, session.observes = lot.choice([0.0, 0.0, 0.1]), 0.0
    lines = lot.choice([200, 1000, 4000])
    places: list[str] = []
    try:
        for turn in range(6):
            count = lot.randint(1, lines) if turn < 3 else 0
            tally.world = f"{world.describe()}; interrupted before {', '.join(places) or 'nothing'}"
            try:
                with at_line(count, _interrupt) as seen:
                    _cell(session)
                break
            except KeyboardInterrupt:
                places.append(str(seen[-1]))
                tally.world = f"{world.describe()}; interrupted before {', '.join(places)}"
        session.finish()
    except infobatch.EpochError as error:
        tally.refuse(error)  # the epoch that was interrupted counts as one of the run
        session.finish()
    finally:
        tally.updates = session.updates
    if len(session.train.history) != session.train.epoch:
        raise FaultError(f"a history of {len(session.train.history)} epochs in epoch {session.train.epoch}")


def _cell(session: Session) -> None:
    for _ in range(session.train.epoch, session.world.epochs):
        session.ordinary_pass()


# ---- kill -9 -----------------------------------------------------------------------------------------------


class Run:
    """A small training with model, optimizer and scheduler that saves every few batches and resumes what it finds."""

    def __init__(self, lot: random.Random) -> None:
        self.size = lot.choice([lot.randint(2, 30), lot.randint(20, 120)])
        self.batch = max(lot.randint(1, self.size), -(-self.size // 12))
        self.epochs, self.every, self.seed = lot.randint(2, 5), lot.randint(1, 4), lot.randint(0, 999)
        self.method = worlds.make_method(lot, worlds.draw_method(lot), self.size)
        self.make_data()

    def make_data(self) -> infobatch.Pruned:
        noise = torch.Generator().manual_seed(self.seed)
        x = torch.randn(self.size, 4, generator=noise)
        y = x.sum(1, keepdim=True).sin() + 0.3 * torch.randn(self.size, 1, generator=noise)
        return infobatch.Pruned(TensorDataset(x, y), self.method, self.epochs, seed=self.seed)

    def train(self, checkpoint: Path, result: Path) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        train_data = self.make_data()
        steps = infobatch.full_steps(train_data, self.batch)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.epochs * steps)
        scheduler = infobatch.pace(cosine, train_data, steps)
        parts = {"model": model, "optimizer": optimizer, "data": train_data, "scheduler": scheduler}
        if checkpoint.exists():
            for name, state in infobatch.load(checkpoint).items():
                parts[name].load_state_dict(state)  # type: ignore[attr-defined]
        loader = infobatch.DataLoader(train_data, batch_size=self.batch)
        for _ in range(train_data.epoch, self.epochs):
            for step, (xs, ys) in enumerate(loader):
                losses = (model(xs) - ys).square().squeeze(1)
                channels = {name: (-losses.detach()).exp() for name in self.method.channels}
                loss = train_data.update(losses, **channels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
                if step % self.every == 0:
                    infobatch.save({name: part.state_dict() for name, part in parts.items()}, checkpoint)  # type: ignore[attr-defined]
        history = [entry.kept for entry in train_data.history]
        final = {
            "model": model.state_dict(),
            "scores": train_data.scores,
            "kept": history,
            "rate": cosine.get_last_lr(),
        }
        infobatch.save(final, result)

    def start(self, checkpoint: Path, result: Path, line: int) -> int:
        """Train in a child that kills itself before a line; return its wait status."""
        child = os.fork()
        if child:
            return os.waitpid(child, 0)[1]
        try:
            with at_line(line, lambda: os.kill(os.getpid(), signal.SIGKILL)):
                self.train(checkpoint, result)
            os._exit(0)
        except BaseException as error:
            checkpoint.with_suffix(".error").write_text(f"{type(error).__name__}: {error}")
            os._exit(1)


def kill(lot: random.Random, tally: Tally) -> None:
    """kill -9 at random lines, writing included: a resumed run ends bit for bit as one left in peace."""
    while True:
        with contextlib.suppress(infobatch.InputError):
            run = Run(lot)
            break
    tally.world = (
        f"{run.method!r}, {run.size} samples, {run.epochs} epochs, batches of {run.batch}, a file every {run.every}"
    )
    with tempfile.TemporaryDirectory() as folder:
        reference, checkpoint, result = (Path(folder, f"{name}.pt") for name in ("reference", "checkpoint", "result"))
        with at_line(-1, _interrupt) as seen:  # only counts
            run.train(Path(folder, "peace.pt"), reference)
        kills, lines = 0, seen[0]
        while not result.exists():
            line = lot.randint(1, lines) if kills < 6 else 0
            had_one = checkpoint.exists()
            status = run.start(checkpoint, result, line)
            if os.WIFEXITED(status) and os.WEXITSTATUS(status):
                raise FaultError(f"it could not resume: {checkpoint.with_suffix('.error').read_text()}")
            kills += os.WIFSIGNALED(status)
            if had_one and not checkpoint.exists():
                raise FaultError("the last checkpoint is gone")
        tally.updates = kills
        one, other = infobatch.load(reference), infobatch.load(result)
    if not torch.equal(one["scores"].nan_to_num(-1.0), other["scores"].nan_to_num(-1.0)):
        raise FaultError("a run that was killed ended with other scores than one left in peace")
    if not all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"]):
        raise FaultError("a run that was killed ended with another model than one left in peace")
    if one["kept"] != other["kept"] or one["rate"] != other["rate"]:
        raise FaultError("a run that was killed ended with another history or learning rate than one left in peace")


# ---- damaged files and foreign states ----------------------------------------------------------------------


def trained(lot: random.Random, tally: Tally) -> tuple[Session, dict[str, Any], dict[str, Any]]:
    """Return a training somewhere in its run, its state and what the oracle knows of it."""
    world = replace(worlds.draw(lot, workers=0.0, plain=True), loader="ours", mode="whole")
    tally.world = world.describe()
    session = Session(world, Known(lot.randint(0, 999), world.size, world.dtype), lot)
    for _ in range(lot.randint(0, world.epochs - 1)):
        session.ordinary_pass()
    if lot.random() < 0.7:
        session.ordinary_pass(lot.randint(1, 3))
    state, snapshot = session.save()
    return session, state, snapshot


def files(lot: random.Random, tally: Tally) -> None:
    """Checkpoint files that are cut short, or have wrong bits: refused, or read as they were written."""
    session, state, snapshot = trained(lot, tally)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "state.pt")
        infobatch.save(state, path)
        whole = path.read_bytes()
        for _ in range(8):
            damaged = bytearray(whole)
            if lot.random() < 0.4:
                damaged = damaged[: lot.randrange(len(whole))]
            else:
                for _ in range(lot.choice([1, 1, 3, 20])):
                    damaged[lot.randrange(len(whole))] ^= 1 << lot.randrange(8)
            path.write_bytes(damaged)
            tally.updates += 1
            try:
                read = infobatch.load(path)
            except infobatch.StateError as error:
                tally.refuse(error)
                continue
            if not same(read, state):
                raise FaultError("a damaged file was read as another state")
        path.write_bytes(whole)
        session.resume(infobatch.load(path), snapshot)


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal; NaN equals NaN."""
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        fits = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.dtype == other.dtype
        return fits and one.shape == other.shape and not bool(differ(one.double(), other.double(), 0.0).any())
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) or (one != one and other != other)


ODD_VALUES: tuple[Any, ...] = (
    None,
    -1,
    0,
    1,
    10**6,
    2**70,
    0.5,
    float("nan"),
    "text",
    "",
    [],
    {},
    True,
    torch.ones(3),
    (1, 2),
)


def spoil(lot: random.Random, state: dict[str, Any]) -> str:
    """Change one thing anywhere in a state; return what."""
    place: Any = state
    path = ""
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return path
        key = lot.choice(keys)
        value = place[key]
        path += f"[{key!r}]"
        inside = isinstance(value, dict | list) and len(value) > 0
        if not inside or lot.random() < 0.2:
            break
        place = value
    if isinstance(value, torch.Tensor) and value.numel() and lot.random() < 0.8:
        place[key], how = spoil_tensor(lot, value)
        return f"{path} {how}"
    if lot.random() < 0.2:
        del place[key]
        return f"{path} deleted"
    if isinstance(value, int) and not isinstance(value, bool) and lot.random() < 0.5:
        place[key] = value + lot.choice([-1, 1, 3])
    else:
        place[key] = lot.choice(ODD_VALUES)
    return f"{path} = {place[key]!r}"


def spoil_tensor(lot: random.Random, value: torch.Tensor) -> tuple[torch.Tensor, str]:
    how = lot.choice(["shorter", "longer", "other type", "2-d", "one value"])
    if how == "shorter":
        return value[1:].clone(), how
    if how == "longer":
        return torch.cat([value, value[:1]]), how
    if how == "other type":
        return value.to(lot.choice([torch.float64, torch.int32, torch.float16])), how
    if how == "2-d":
        return value[:, None], how
    changed = value.clone()
    choices = [0, 1, -1, 10**6] if not value.is_floating_point() else [0.0, -1.0, 3e38, float("nan"), float("inf")]
    changed[lot.randrange(value.numel())] = lot.choice(choices)
    return changed, how


def states(lot: random.Random, tally: Tally) -> None:
    """States that something has changed: refused with nothing loaded, or loaded so that training can go on."""
    session, state, snapshot = trained(lot, tally)
    target = Session(session.world, session.losses, lot)
    if lot.random() < 0.5:
        target.ordinary_pass(lot.randint(1, 3))
    start = tally.world
    for _ in range(6):
        changed = copy.deepcopy(state)
        what = spoil(lot, changed)
        tally.world = f"{start}; {what}"
        before = target.train.state_dict()
        tally.updates += 1
        try:
            target.train.load_state_dict(changed)
        except infobatch.StateError as error:
            tally.refuse(error)
            if not same(before, target.train.state_dict()):
                raise FaultError("a state was refused, but something of it was loaded") from None
            continue
        with contextlib.suppress(infobatch.InfoBatchError):
            _train_on(target)
        target = Session(session.world, session.losses, lot)
    tally.world = start
    session.resume(state, snapshot)


def _train_on(session: Session) -> None:
    """Two epochs without an oracle: what was loaded is not what was saved."""
    train, world = session.train, session.world
    loader = infobatch.DataLoader(train, batch_size=world.batch)
    for _ in range(2):
        if train.epoch >= world.epochs:
            break
        for raw in loader:
            ids = worlds.values_of(raw)
            losses = session.losses(ids, 0)
            train.update(losses, **{name: session.losses.channel(ids, 0) for name in train.method.channels})
        len(loader), train.progress, train.history, train.scores, train.plan(), repr(train)
        train.state_dict()
