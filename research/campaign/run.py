"""Run what is still wanted for as long as there is time, and append one record a run.

    python research/campaign/run.py headline short --data DIR --seconds 540 --processes 4 --out new.jsonl
    python research/campaign/run.py screen --tiny --processes 2 --out /tmp/out.jsonl     # a rehearsal, on digits

Needs torch and numpy alone. Runs that have a record are left out: in --out, or, but for --again, with ours. A run
that would not end in time is not begun: the next that would is taken, so a queue of short runs behind one of long
runs fills the last minutes, and being cut off costs at most the runs at hand.
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
from infobatch.lab.runs import records
from infobatch.lab.tasks.catalogue import make_task
from infobatch.lab.train import loop as training
from infobatch.lab.train.batches import size_of
from infobatch.lab.train.settings import Settings, since

KEPT = HERE.parent / "records" / "campaign"


def identity(settings: Settings) -> str:
    """The run, whatever machine it is on."""
    return settings.but(data="", device="auto", threads=0).key


def compact(facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Start and end, with the epochs as columns: a campaign has hundreds of runs."""
    epochs = [fact for fact in facts if fact["kind"] == "epoch"]
    dropped = ("class_size", "class_kept", "class_metric", "classes", "source")
    start, end = ({key: value for key, value in facts[at].items() if key not in dropped} for at in (0, -1))
    end["kept_by_epoch"] = [fact["kept"] for fact in epochs]
    end["metric_by_epoch"] = {
        str(fact["epoch"]): round(fact["metric"], 3) for fact in epochs if fact["metric"] is not None
    }
    return [start, end]


def known(*paths: Path) -> list[records.Run]:
    return [run for run in records.read_many(*filter(Path.exists, paths)) if run.end is not None]


def steps_of(settings: Settings, size: int, past: list[records.Run]) -> int:
    """About so many steps: what the method has always saved in such a setting, it will save again."""
    setting = (settings.model, settings.epochs, 0)
    there = [run for run in past if (run.settings.model, run.settings.epochs, run.settings.steps) == setting]
    name = settings.method.partition(":")[0]
    same = [run for run in there if run.settings.method == settings.method]
    alike = same or [run for run in there if run.settings.method.partition(":")[0] == name]
    saved = min((run.end["saved"] for run in alike if run.end is not None), default=0.0)
    return settings.steps or round((1 - saved) * settings.epochs * -(-size // settings.batch_size))


def learn(steps: Any, todo: list[dict[str, Any]], at: int, took: int) -> None:
    """What one seed took, the others of its kind will take: a guess that is too high would leave them out."""
    for other, settings in enumerate(todo):
        if settings | {"seed": 0} == todo[at] | {"seed": 0}:
            steps[other] = took


def take(taken: Any, steps: Any, pace: Any, deadline: float) -> int | None:
    """The first run that nobody has begun and that would end in time."""
    with taken.get_lock():
        for at, count in enumerate(steps):
            if not taken[at] and time.time() + count * pace.value < deadline:
                taken[at] = 1
                return at
    return None


def work(todo: list[dict[str, Any]], steps: Any, taken: Any, out: Path, until: float, shared: Shared) -> None:
    """Train one after the other, until there is nothing left, no time or no campaign."""
    tasks: dict[str, Any] = {}
    while os.getppid() == shared.parent and (at := take(taken, steps, shared.pace, until)) is not None:
        settings = Settings.of(todo[at])
        begun = time.time()
        try:
            if settings.task not in tasks:
                tasks[settings.task] = make_task(settings.task, settings.data)
            facts = list(training.run(settings, task=tasks[settings.task], name=identity(settings)))
        except Exception as error:  # the other runs are not to blame
            print(f"{records.label(settings)}, seed {settings.seed}: {type(error).__name__}: {error}", flush=True)
            with shared.failed.get_lock():
                shared.failed.value += 1
            continue
        going = time.time() - begun - facts[-1]["seconds"]["setup"]  # which a process has once: it compiles the net
        shared.pace.value = max(shared.pace.value, going / facts[-1]["steps"])
        learn(steps, todo, at, facts[-1]["steps"])
        facts[0]["environment"]["at_a_time"] = shared.processes
        append(facts, out)
        end = facts[-1]
        told = {
            "method": records.label(settings), "model": settings.model, "seed": settings.seed, "saved": end["saved"],
            "metric": end["metric"], "seconds": end["seconds"], "wall": time.time() - begun,
        }  # fmt: skip
        print(json.dumps(told), flush=True)


def append(facts: list[dict[str, Any]], out: Path) -> None:
    """Whole runs, one after the other; one that another process has written meanwhile is not written again."""
    text = "".join(map(records.line, compact(facts)))
    with open(out, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if identity(Settings.of(facts[0]["settings"])) not in {identity(run.settings) for run in known(out)}:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())


class Shared(NamedTuple):
    """What the processes know of each other."""

    pace: Any
    """Seconds a step, of the slowest run so far."""
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
    """KEY=VALUE; a value that is no JSON is text."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("queues", nargs="+", choices=QUEUES, help="one after the other")
    parser.add_argument("--data", default="", help="the folder of the data")
    parser.add_argument("--out", type=Path, required=True, help="the file to append records to")
    parser.add_argument("--seconds", type=float, default=540, help="begin nothing that would end later")
    parser.add_argument("--processes", type=count(1), default=1, help="runs at a time")
    parser.add_argument("--seeds", type=count(1), help="as many as the queue says, if left out")
    parser.add_argument("--limit", type=count(0), help="at most so many runs")
    parser.add_argument("--again", action="store_true", help="also what has a record in research/records/campaign")
    parser.add_argument("--expect", type=float, default=0, help="seconds a step takes, until a run has been timed")
    parser.add_argument("--weighed", action="store_true", help="what is pruned, with a short last batch weighed")
    parser.add_argument("--mps", action="store_true", help="share the GPU by its multi-process service")
    parser.add_argument("--set", nargs="*", type=setting, default=[], help="settings for all runs, as lr=0.2")
    parser.add_argument("--tiny", action="store_true", help="nine epochs on digits, to rehearse")
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
        wanted = [run.but(ideas=since(run.ideas)) for run in wanted if run.method != "full"]
    with alone(args.out):
        past, here = known(KEPT), known(args.out)
        done = {identity(run.settings) for run in (here if args.again else [*past, *here])}
        runs = [Settings.of({**run.plain(), "data": args.data, **changes}) for run in wanted]
        if args.tiny:
            runs = [run.but(steps=min(run.steps, 100)) for run in runs]
        unique = {identity(run): run for run in runs}  # two queues may want the same
        todo = [run for key, run in unique.items() if key not in done][: args.limit]
        sizes = {name: size_of(make_task(name, args.data).train) for name in sorted({run.task for run in todo})}
        print(f"{len(todo)} runs wanted, {len(done)} records there", flush=True)
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
    print(f"{sum(taken) - failed.value} done, {failed.value} failed, {left} not begun", flush=True)
    return int(failed.value > 0 or any(worker.exitcode for worker in workers))


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """The file is there, whole and nobody else's, before anything is trained for it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with open(out.with_name(out.name + ".lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            records.set_torn_line_aside(out)
            open(out, "a").close()
        except OSError as error:
            text = message("a file to append to that no other campaign has", str(out), str(error))
            raise InputError(text) from error
        yield


if __name__ == "__main__":
    main()
