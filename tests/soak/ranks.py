"""Kinds with several ranks: gloo processes that stop inside an epoch and go on as more or fewer."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import infobatch

from . import worlds
from .oracle import FaultError, SeenPlan, differ
from .session import Known, twin_of
from .tally import Tally
from .worlds import World, values_of

PATIENCE = 30


@dataclass(frozen=True)
class Stage:
    """One process group's part of the run."""

    world: World
    ranks: int
    steps: int | None
    """After how many steps of its first epoch it stops; None to go on to the end."""
    epochs: int
    """How many whole epochs it trains before that."""


@dataclass
class Step:
    """What all ranks did in one step."""

    epoch: int
    ids: list[Tensor]
    values: list[float]


def train_rank(stage: Stage, losses: Known, state: Any, log: Path) -> None:
    """One rank: train, and write down each step, the plans and the state at the end."""
    train = stage.world.make()
    if state is not None:
        train.load_state_dict(state)
    loader = stage.world.make_loader(train)
    steps: list[tuple[int, Tensor, float]] = []
    plans: dict[int, Any] = {}
    stop_in = train.epoch + stage.epochs
    for _ in range(train.epoch, stage.world.epochs):
        for count, raw in enumerate(loader, 1):
            ids, epoch = values_of(raw), train.epoch
            plan: Any = train.plan()
            plans[epoch] = {"indices": plan.indices.clone(), "table": plan.table.clone()}
            given = losses(ids, epoch)
            channels = {name: losses.channel(ids, epoch) for name in train.method.channels}
            if stage.world.mode == "named":
                step = train.update(given, train.batch_indices, **channels)
            else:
                step = train.update(given, **channels)
            steps.append((epoch, ids, float(step)))
            if count == stage.steps and epoch >= stop_in:
                break
        else:
            continue
        break
    scores = train.scores
    infobatch.save(
        {
            "state": train.state_dict(),
            "steps": steps,
            "plans": plans,
            "scores": scores,
            "epoch": train.epoch,
            "history": [(entry.epoch, entry.kept) for entry in train.history],
        },
        log,
    )


def run_stage(stage: Stage, losses: Known, state: Any, folder: Path) -> list[dict[str, Any]]:
    """Run the ranks of a stage, and return what each wrote down."""
    store, children = folder / f"store-{len(list(folder.iterdir()))}", []
    logs = [folder / f"{store.name}-{rank}.pt" for rank in range(stage.ranks)]
    for rank, log in enumerate(logs):
        child = os.fork()
        if child == 0:
            _perform(rank, stage, losses, state, store, log)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    for log in logs:
        if log.with_suffix(".refused").exists():
            raise infobatch.RankError(log.with_suffix(".refused").read_text())
        if log.with_suffix(".error").exists():
            raise FaultError(f"a rank ended with {log.with_suffix('.error').read_text()}")
        if not log.exists():
            raise FaultError("a rank died")
    return [infobatch.load(log) for log in logs]


def _perform(rank: int, stage: Stage, losses: Known, state: Any, store: Path, log: Path) -> None:
    try:
        if stage.ranks > 1:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{store}",
                rank=rank,
                world_size=stage.ranks,
                timeout=timedelta(seconds=PATIENCE),
            )
        train_rank(stage, losses, state, log)
        if stage.ranks > 1:
            with contextlib.suppress(Exception):  # a peer may have left already
                dist.barrier()
    except infobatch.InfoBatchError as error:
        log.with_suffix(".refused").write_text(f"{type(error).__name__}: {error}")
    except BaseException as error:
        log.with_suffix(".error").write_text(f"{type(error).__name__}: {error}")
    finally:
        os._exit(0)


# ---- what must be true ---------------------------------------------------------------------------------------


class Whole:
    """The training of all ranks together."""

    def __init__(self, world: World, losses: Known) -> None:
        self.losses = losses
        self.size = world.size
        self.plans: dict[int, SeenPlan] = {}
        self.done = torch.zeros(world.size, dtype=torch.bool)
        self.epoch = 0
        self.checked = 0
        self.resumed = -1
        """The epoch that the latest stage began in, if it was not at its start."""

    def check(self, stage: Stage, logs: list[dict[str, Any]]) -> None:
        for log in logs:
            for name in ("scores", "epoch", "history"):
                same = (
                    not differ(log[name], logs[0][name], 0.0).any() if name == "scores" else log[name] == logs[0][name]
                )
                if not same:
                    raise FaultError(f"the ranks ended with different {name}")
            if len(log["steps"]) != len(logs[0]["steps"]):
                raise FaultError(f"the ranks took {[len(log['steps']) for log in logs]} steps")
        for epoch, plan in logs[0]["plans"].items():
            self.plans.setdefault(epoch, SeenPlan.of(_Drawn(epoch, **plan), stage.world.compensate))
        self.resumed = self.epoch if self.done.any() else -1
        by_rank = [log["steps"] for log in logs]
        steps = [
            Step(together[0][0], [ids for _, ids, _ in together], [value for _, _, value in together])
            for together in zip(*by_rank, strict=True)
        ]
        for epoch in sorted({step.epoch for step in steps}):
            self._check_epoch(stage, epoch, [step for step in steps if step.epoch == epoch])

    def _check_epoch(self, stage: Stage, epoch: int, steps: list[Step]) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.done.zero_()
        plan = self.plans[epoch]
        left = plan.indices[~self.done[plan.indices]]
        ghosts = -len(left) % stage.ranks
        total = sum(len(ids) for step in steps for ids in step.ids)
        ends = total >= len(left) + ghosts
        for step in steps:
            is_last = ends and step is steps[-1]
            came = [_without_filler(ids, plan) if is_last else ids for ids in step.ids]
            real = [ids[:-1] if is_last and rank >= stage.ranks - ghosts else ids for rank, ids in enumerate(came)]
            self._check_step(stage, plan, step, torch.cat(real))
        if ends and not bool(self.done[plan.indices].all()):
            raise FaultError(f"the ranks left samples of epoch {epoch} out")

    def _check_step(self, stage: Stage, plan: SeenPlan, step: Step, ids: Tensor) -> None:
        self.checked += 1
        if bool(self.done[ids].any()) or ids.unique().numel() != ids.numel():
            raise FaultError("a sample was delivered twice in an epoch, by one rank or by two")
        if not bool((plan.table[ids] > 0).all()):
            raise FaultError("a rank delivered a sample that is not in the plan")
        self.done[ids] = True
        count, batch = len(step.ids[0]), stage.world.batch
        total = float((self.losses(ids, plan.epoch).double() * plan.weights[ids].double()).sum())
        got = sum(step.values) / stage.ranks
        over_samples, over_losses = total / len(ids), total / (stage.ranks * count)
        right = [over_samples] if stage.world.mode == "whole" else [over_samples, over_losses]
        if plan.is_pruned:
            share = [total / (stage.ranks * batch)]
            right = share + (right if plan.kept <= stage.ranks * batch else [])
        if not any(abs(got - value) <= 1e-5 + 1e-4 * abs(value) for value in right):
            kind = "pruned" if plan.is_pruned else "full"
            size = "whole" if count == batch else "short"
            resumed = " that was resumed" if plan.epoch == self.resumed else ""
            raise FaultError(
                f"on several ranks a {size} step of a {kind} epoch{resumed} is {got / right[0]:.4g} times what is right"
            )


def _without_filler(ids: Tensor, plan: SeenPlan) -> Tensor:
    """Leave out the ghost beside a single last sample of a pruned epoch; it is no part of the plan."""
    is_filled = plan.is_pruned and len(ids) == 2 and bool(plan.table[ids[-1]] == 0)
    return ids[:-1] if is_filled else ids


@dataclass(frozen=True)
class _Drawn:
    epoch: int
    indices: Tensor
    table: Tensor


def ranks(lot: random.Random, tally: Tally) -> None:
    """One to three gloo ranks that stop inside an epoch and go on as another number of ranks, with other batches."""
    world = worlds.draw(lot, workers=0.0, plain=True)
    while world.method.score != "loss" or world.loader == "plan" or world.size < 4:
        world = worlds.draw(lot, workers=0.0, plain=True)
    world = replace(world, epochs=min(world.epochs, 4), mode=lot.choice(["whole", "whole", "named"]))
    with contextlib.suppress(infobatch.InputError):
        world.make()
        losses = Known(lot.randint(0, 999), world.size, world.dtype)
        _go_on_as_others(lot, tally, world, losses)


def _go_on_as_others(lot: random.Random, tally: Tally, world: World, losses: Known) -> None:
    whole, state, numbers = Whole(world, losses), None, [2]
    tally.world = world.describe()
    with tempfile.TemporaryDirectory() as name:
        for turn in range(3):
            steps = None if turn == 2 else lot.randint(1, 4)
            stage = Stage(world, numbers[-1], steps, lot.randint(0, 1))
            tally.world = f"{world.describe()}; on {numbers} ranks"
            logs = run_stage(stage, losses, state, Path(name))
            whole.check(stage, logs)
            tally.updates = whole.checked
            state = logs[0]["state"]
            if logs[0]["epoch"] >= world.epochs:
                break
            numbers.append(lot.choice([1, 2, 2, 3]))
            if lot.random() < 0.5:
                world = replace(world, batch=max(1, world.batch + lot.randint(-2, 3)))
    plans, scores = twin_of(world, losses)
    for epoch, seen in whole.plans.items():
        right = plans[epoch]
        if not torch.equal(seen.indices, right.indices) or not torch.equal(seen.table, right.table):
            raise FaultError(f"the plan of epoch {epoch} on several ranks is not that of one process")
    if logs[0]["epoch"] >= world.epochs and differ(logs[0]["scores"], scores).any():
        raise FaultError("the scores of several ranks are not those of one process")
