"""Train the runs of a queue that have no record yet, as long as time allows; append one record per run.

    python research/campaign/run.py headline short --data DIR --seconds 540 --processes 4 --out new.jsonl
    python research/campaign/run.py screen --tiny --processes 2 --out /tmp/out.jsonl     # a rehearsal, on digits

Needs only torch and numpy. A run with a record is skipped: in --out, or, without --again, in research/records. A run
that would not finish in time is not started; the next one that would is taken instead, so short runs queued behind
long ones fill the last minutes. A kill costs at most the runs in progress.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "src"))
sys.path.insert(0, str(HERE))

import torch.multiprocessing as mp
from wanted import QUEUES, TINY

from infobatch.errors import InfoBatchError, InputError, message
from infobatch.lab.metrics import MetricInfo
from infobatch.lab.runs import records
from infobatch.lab.tasks.catalogue import make_task
from infobatch.lab.train import loop as training
from infobatch.lab.train.batches import size_of
from infobatch.lab.train.settings import Settings, without_whole_last

KEPT = HERE.parent / "records" / "campaign"


def identity(settings: Settings) -> str:
    """Return a key of the run that does not depend on the machine."""
    return settings.but(data="", device="auto", threads=0).key


def current(settings: Settings) -> Settings:
    """Return a recorded run as it is trained now: a short last batch is weighted by its samples."""
    return settings.but(ideas=without_whole_last(settings.ideas))


def is_trainable(settings: Settings) -> bool:
    """False for runs that can only be read: a growing learning rate, or an experiment that was dropped."""
    try:
        settings.check_trainable()
    except InputError:
        return False
    return True


def compact(facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep start and end, with the epochs as columns: a campaign has hundreds of runs."""
    epochs = [fact for fact in facts if fact["kind"] == "epoch"]
    dropped = ("class_size", "class_kept", "class_metric", "classes", "source")
    start, end = ({key: value for key, value in facts[at].items() if key not in dropped} for at in (0, -1))
    end["kept_by_epoch"] = [fact["kept"] for fact in epochs]
    places = MetricInfo.of_record(start).places + 1
    end["metric_by_epoch"] = {
        str(fact["epoch"]): round(fact["metric"], places) for fact in epochs if fact["metric"] is not None
    }
    return [start, end]


def known(*paths: Path) -> list[records.Run]:
    return [run for run in records.read_many(*filter(Path.exists, paths)) if run.end is not None]


def steps_of(settings: Settings, size: int, past: list[records.Run]) -> int:
    """Estimate the steps of a run from what its method saved in earlier runs of the same kind."""
    setting = (settings.model, settings.epochs, 0)
    there = [run for run in past if (run.settings.model, run.settings.epochs, run.settings.steps) == setting]
    name = settings.method.partition(":")[0]
    same = [run for run in there if run.settings.method == settings.method]
    alike = same or [run for run in there if run.settings.method.partition(":")[0] == name]
    saved = min((run.end["saved"] for run in alike if run.end is not None), default=0.0)
    return settings.steps or round((1 - saved) * settings.epochs * -(-size // settings.batch_size))


def learn(steps: Any, todo: list[dict[str, Any]], at: int, took: int) -> None:
    """Use the steps of one seed for all seeds of its kind: too high an estimate would keep them from starting."""
    for other, settings in enumerate(todo):
        if settings | {"seed": 0} == todo[at] | {"seed": 0}:
            steps[other] = took


def take(taken: Any, steps: Any, pace: Any, deadline: float) -> int | None:
    """Claim the first run that no process has started and that would finish in time."""
    with taken.get_lock():
        for at, count in enumerate(steps):
            if not taken[at] and time.time() + count * pace.value < deadline:
                taken[at] = 1
                return at
    return None


def work(todo: list[dict[str, Any]], steps: Any, taken: Any, out: Path, until: float, shared: Shared) -> None:
    """Train runs until none is left, time is up, or the parent process is gone."""
    tasks: dict[str, Any] = {}
    while os.getppid() == shared.parent and (at := take(taken, steps, shared.pace, until)) is not None:
        settings = Settings.of(todo[at])
        started = time.time()
        try:
            if settings.task not in tasks:
                tasks[settings.task] = make_task(settings.task, settings.data)
            facts = list(training.run(settings, task=tasks[settings.task], name=identity(settings)))
        except Exception as error:  # one failed run must not stop the others
            print(f"{records.label(settings)}, seed {settings.seed}: {type(error).__name__}: {error}", flush=True)
            with shared.failed.get_lock():
                shared.failed.value += 1
            continue
        training_seconds = time.time() - started - facts[-1]["seconds"]["setup"]  # setup happens once per process
        shared.pace.value = max(shared.pace.value, training_seconds / facts[-1]["steps"])
        learn(steps, todo, at, facts[-1]["steps"])
        facts[0]["environment"]["at_a_time"] = shared.processes
        append(facts, out)
        end = facts[-1]
        summary = {
            "method": records.label(settings), "model": settings.model, "seed": settings.seed, "saved": end["saved"],
            "metric": end["metric"], "seconds": end["seconds"], "wall": time.time() - started,
        }  # fmt: skip
        print(json.dumps(summary), flush=True)


def append(facts: list[dict[str, Any]], out: Path) -> None:
    """Append a complete run, unless another process has written it meanwhile."""
    text = "".join(map(records.line, compact(facts)))
    with open(out, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if identity(Settings.from_record(facts[0])) not in {identity(run.settings) for run in known(out)}:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())


class Shared(NamedTuple):
    """State shared by the processes."""

    pace: Any
    """Seconds per step of the slowest run so far."""
    failed: Any
    parent: int
    processes: int


def count(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if int(text) < least:
            raise ValueError
        return int(text)

    read.__name__ = f"number from {least}"
    return read


def setting(text: str) -> tuple[str, Any]:
    """Parse KEY=VALUE; a value that is not JSON is text."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("queues", nargs="+", choices=QUEUES, help="trained one after the other")
    parser.add_argument("--data", default="", help="the folder of the data")
    parser.add_argument("--out", type=Path, required=True, help="the file to append records to")
    parser.add_argument("--seconds", type=float, default=540, help="start no run that would finish later")
    parser.add_argument("--processes", type=count(1), default=1, help="runs at a time")
    parser.add_argument("--seeds", type=count(1), help="default: as many as the queue has")
    parser.add_argument("--limit", type=count(0), help="at most this many runs")
    parser.add_argument("--again", action="store_true", help="also runs with a record in research/records/campaign")
    parser.add_argument("--expect", type=float, default=0, help="seconds per step, until a run has been timed")
    parser.add_argument(
        "--weighed",
        action="store_true",
        help="pruned runs only, also those whose record counts a short last batch as a full one",
    )
    parser.add_argument("--mps", action="store_true", help="share the GPU through its multi-process service")
    parser.add_argument("--set", nargs="*", type=setting, default=[], help="settings for all runs, for example lr=0.2")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal: nine epochs on digits")
    args = parser.parse_args()
    try:
        sys.exit(campaign(args))
    except InfoBatchError as error:
        parser.error(str(error))


def campaign(args: argparse.Namespace) -> int:
    deadline = time.time() + args.seconds
    changes = dict(args.set)
    if args.tiny:
        changes |= {**TINY, "epochs": 9}
    wanted = [run for name in args.queues for run in QUEUES[name](**({"seeds": args.seeds} if args.seeds else {}))]
    if args.weighed:
        wanted = [current(run) for run in wanted if run.method != "full"]
    with alone(args.out):
        past, here = known(KEPT), known(args.out)
        done = {identity(run.settings) for run in (here if args.again else [*past, *here])}
        runs = [Settings.of({**run.plain(), "data": args.data, **changes}) for run in wanted]
        if args.tiny:
            runs = [run.but(steps=min(run.steps, 100)) for run in runs]
        missing = [current(run) for run in runs if identity(run) not in done]
        unique = {identity(run): run for run in missing if is_trainable(run)}  # queues may share runs
        todo = [run for key, run in unique.items() if key not in done][: args.limit]
        sizes = {name: size_of(make_task(name, args.data).train) for name in sorted({run.task for run in todo})}
        print(f"{len(todo)} runs wanted, {len(done)} recorded", flush=True)
        if args.mps:
            subprocess.run(["nvidia-cuda-mps-control", "-d"], check=False)
        context = mp.get_context("spawn")
        taken, failed = context.Array("b", len(todo)), context.Value("i", 0)
        shared = Shared(context.Value("d", args.expect), failed, os.getpid(), args.processes)
        plain = [run.plain() for run in todo]
        steps = context.Array("q", [steps_of(run, sizes[run.task], [*past, *here]) for run in todo])
        workers = [
            context.Process(target=work, args=(plain, steps, taken, args.out, deadline, shared))
            for _ in range(args.processes)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    left = len(todo) - sum(taken)
    print(f"{sum(taken) - failed.value} done, {failed.value} failed, {left} not started", flush=True)
    return int(failed.value > 0 or any(worker.exitcode for worker in workers))


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Create the file if needed, repair a torn last line, and lock it against other campaigns."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with open(out.with_name(out.name + ".lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            records.set_torn_line_aside(out)
            open(out, "a").close()
        except OSError as error:
            text = message("a file that no other campaign appends to", str(out), str(error))
            raise InputError(text) from error
        yield


if __name__ == "__main__":
    main()
