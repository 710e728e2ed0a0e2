"""A training as plain tensors, numbers and text, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .checks import check_shardable
from .epoch.running import RunningEpoch
from .epoch.scores import Scores, ScoreTable, copy_to_cpu
from .epoch.slice import UNSEEN
from .methods.cuts import rule_of
from .methods.method import Method
from .plan import Compensation, EpochSummary
from .ranks.exchange import find
from .ranks.shards import ShardedScores
from .state_checks import FORMAT, State


def make_scores(size: int, method: Method, group: Any, *, shard: bool) -> Scores:
    """Return what holds the scores of a training before its first epoch: a table, or one shard of it per rank."""
    if shard:
        by_cuts = rule_of(method.policy) is not None and method.memory is None and not method.around
        check_shardable(size, repr(method), by_cuts)
        return ShardedScores(size, find(group))
    table = ScoreTable(size)
    table.make_columns(method.memory, method.channels)
    return table


def make_state(
    running: RunningEpoch,
    *,
    method: str,
    compensate: Compensation,
    num_epochs: int,
    seed: int,
    summaries: Sequence[EpochSummary],
) -> State:
    """Return the state of a training. Inside an epoch, ranks that save together bring their losses together here.

    The running plan is saved as it was drawn, not as a seed: it must stay the same on another device, where the same
    seed gives different numbers.
    """
    scores = running.scores
    done, epoch = _save_running(running)
    return {
        "format": FORMAT,
        "size": scores.size,
        "method": method,
        "compensate": compensate,
        "device": scores.device.type,
        "num_epochs": num_epochs,
        "seed": seed,
        "epoch": running.epoch,
        "largest_update": running.largest_here or running.largest_before,
        "planned": scores.planned,
        "scores": copy_to_cpu(scores.scores),
        "memory": {name: copy_to_cpu(column) for name, column in scores.memory.items()},
        "summaries": [asdict(summary) for summary in summaries],
        "done": done,
        "running": epoch,
        **scores.shard_info(),
    }


def _save_running(running: RunningEpoch) -> tuple[int, State | None]:
    """Return how many samples of the running epoch are done, and its plan and losses; None before the first."""
    if running.plan is None or not (running.is_resumed or running.done()):
        return 0, None
    queue = running.queue
    taken_alone = None if queue is None or running.all_save() else queue.taken
    saved = running.scores.save_running(running.plan, None if queue is None else queue.slice, taken_alone)
    done = int(saved["fresh"].ne(UNSEEN).count_nonzero())
    # a shard without a loss may be part of an epoch that has begun on other ranks
    return done, saved if done or running.scores.is_sharded else None


def restore(running: RunningEpoch, states: Sequence[State], compensate: Compensation) -> None:
    """Load states that ``Scores.check_states`` has accepted, into an epoch that stands at its start."""
    running.largest_before, running.largest_here = states[0]["largest_update"], 0
    running.plan = running.scores.restore(states, compensate)
    if running.plan is not None:
        running.done_before, running.is_resumed = running.scores.count_seen(), True
