"""A course of training as plain tensors, numbers and text, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from .epoch.running import Course
from .epoch.scores import UNSEEN, ScoreBook
from .epoch.summary import EpochReport
from .plan import Plan, ShardPlan
from .ranks.shards import ShardBook
from .state_checks import FORMAT, check_parts, check_state

State = dict[str, Any]


def state_of(
    course: Course,
    *,
    method: str,
    compensate: str,
    num_epochs: int,
    seed: int,
    reports: Sequence[EpochReport],
) -> State:
    """With ranks, for all of them or none: it brings their losses together."""
    book, part = course.book, {}
    if isinstance(book, ShardBook):
        part = {"part": {"rank": book.ranks.rank, "world": book.ranks.world, "start": book.start}}
        done, running = _running_part(course, book)
    else:
        done, running = _running(course)
    return {
        "format": FORMAT,
        "size": book.size,
        "method": method,
        "compensate": compensate,
        "device": book.device.type,
        "num_epochs": num_epochs,
        "seed": seed,
        "epoch": course.epoch,
        "seen": course.seen,
        "usual": course.usual,
        "planned": book.planned,
        "scores": _saved(book.scores),
        "memory": {name: _saved(column) for name, column in book.memory.items()},
        "reports": [asdict(report) for report in reports],
        "done": done,
        "running": running,
        **part,
    }


def _running(course: Course) -> tuple[int, State | None]:
    """How many samples of the running epoch are done, and its plan and losses; None before the first.

    Parts of a batch that is not complete are not done: they come again.
    """
    plan = course.plan
    if not isinstance(plan, Plan) or not (course.before or course.done()):
        return 0, None
    course.hand_in()
    fresh = _saved(course.losses_of_all("saves in", sure=True))
    came = {name: _saved(column) for name, column in course.came_of_all("saves in").items()}
    done = int(fresh.ne(UNSEEN).count_nonzero())
    if not done:
        return 0, None
    return done, {
        "indices": _saved(plan.indices),
        "table": None if bool((plan.table == 1).all()) else _saved(plan.table),
        "chosen": None if plan.chosen is None else _saved(plan.chosen),
        "fresh": fresh,
        "came": came,
    }


def _running_part(course: Course, book: ShardBook) -> tuple[int, State | None]:
    """The same, of scores in parts."""
    plan = course.plan
    if not isinstance(plan, ShardPlan) or not (course.begun or course.done()):
        return 0, None
    run = course.running
    fresh = _saved(book.fresh_without([] if run is None else run.unsure))
    return int(fresh.ne(UNSEEN).count_nonzero()), {"level": _saved(book.level[:-1]), "fresh": fresh, **asdict(plan)}


def checked(course: Course, state: State | list[State], method: str, compensate: str) -> list[State]:
    """A state as its parts, one where scores are in one table; a StateError unless it can be loaded as a whole."""
    book = course.book
    if isinstance(book, ShardBook):
        parts = state if isinstance(state, list) else [state]
        check_parts(parts, book.size, method, compensate, book.start, book.stop)
        return parts
    check_state(state, book.size, method, compensate, book.memory, book.came)
    assert isinstance(state, dict)
    return [state]


def restore(course: Course, parts: Sequence[State], scale: Callable[[Plan | ShardPlan], float]) -> None:
    """The book, and the running plan with what had come back; ``scale`` says how its weights are scaled."""
    book = course.book
    course.seen, course.usual = parts[0]["seen"], parts[0]["usual"]
    if isinstance(book, ShardBook):
        _restore_part(course, book, parts, scale)
    else:
        _restore_whole(course, book, parts[0], scale)


def _restore_part(
    course: Course, book: ShardBook, parts: Sequence[State], scale: Callable[[Plan | ShardPlan], float]
) -> None:
    weights, running = book.load(parts), parts[0]["running"]
    if running is not None:
        facts = {key: value for key, value in running.items() if key not in ("level", "fresh")}
        course.plan = drawn = ShardPlan(**{**facts, "weights": weights})
        book.weigh(drawn, scale(drawn))
        course.before, course.begun = book.seen(), True


def _restore_whole(course: Course, book: ScoreBook, state: State, scale: Callable[[Plan | ShardPlan], float]) -> None:
    book.load(state["scores"], state["planned"])
    for name, column in state["memory"].items():
        book.memory[name].copy_(column)
    running, device = state["running"], book.device
    if running is None:
        return
    table, chosen = running["table"], running.get("chosen")
    if table is None:
        table = torch.ones(1, dtype=torch.float32, device="cpu").expand(state["size"])
    course.plan = plan = Plan(
        course.epoch,
        running["indices"].to(device, copy=True),
        table.to(device, copy=True),
        None if chosen is None else chosen.to(device, copy=True),
    )
    book.begin(plan, scale(plan))
    book.fresh.copy_(running["fresh"])
    for name, column in running["came"].items():
        book.came[name].copy_(column)
    course.before = book.seen()


def _saved(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)
