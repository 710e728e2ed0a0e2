"""Run what is still wanted for as long as there is time, and append one record a run.

    python recipes/campaign/run.py headline short --data DIR --seconds 540 --processes 4 --out new.jsonl
    python recipes/campaign/run.py screen --tiny --processes 2 --out /tmp/out.jsonl     # a rehearsal, on digits

Needs torch and numpy alone. Runs that have a record (in recipes/records/campaign or in --out) are left out. A run
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
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "src"))
sys.path.insert(0, str(HERE))

import torch.multiprocessing as mp
from wanted import QUEUES

from infobatch.lab import records, training
from infobatch.lab.catalogue import make_task
from infobatch.lab.feeding import size_of
from infobatch.lab.settings import Settings

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
    files = [file for path in paths for file in (sorted(path.glob("*.jsonl")) if path.is_dir() else [path])]
    return [run for file in files if file.exists() for run in records.read_file(file) if run.end is not None]


def steps_of(settings: Settings, size: int, past: list[records.Run]) -> int:
    """About so many steps: what the method has always saved in such a setting, it will save again."""
    there = [run for run in past if (run.settings.model, run.settings.epochs) == (settings.model, settings.epochs)]
    name = settings.method.partition(":")[0]
    same = [run for run in there if run.settings.method == settings.method]
    alike = same or [run for run in there if run.settings.method.partition(":")[0] == name]
    saved = min((run.end["saved"] for run in alike if run.end is not None), default=0.0)
    return settings.steps or round((1 - saved) * settings.epochs * -(-size // settings.batch_size))


def take(taken: Any, steps: list[int], pace: Any, deadline: float) -> int | None:
    """The first run that nobody has begun and that would end in time."""
    with taken.get_lock():
        for at, count in enumerate(steps):
            if not taken[at] and time.time() + count * pace.value < deadline:
                taken[at] = 1
                return at
    return None


def work(todo: list[dict[str, Any]], steps: list[int], taken: Any, out: Path, deadline: float, pace: Any) -> None:
    tasks: dict[str, Any] = {}
    while (at := take(taken, steps, pace, deadline)) is not None:
        settings = Settings.of(todo[at])
        begun = time.time()
        if settings.task not in tasks:
            tasks[settings.task] = make_task(settings.task, settings.data)
        try:
            facts = list(training.run(settings, task=tasks[settings.task], name=identity(settings)))
        except Exception as error:  # the other runs are not to blame
            print(f"{records.label(settings)}, seed {settings.seed}: {type(error).__name__}: {error}", flush=True)
            continue
        pace.value = max(pace.value, (time.time() - begun) / facts[-1]["steps"])
        text = "".join(map(records.line, compact(facts)))
        with open(out, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # whole runs, one after the other
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        end = facts[-1]
        told = {
            "method": records.label(settings), "model": settings.model, "seed": settings.seed, "saved": end["saved"],
            "metric": end["metric"], "seconds": end["seconds"], "wall": time.time() - begun,
        }  # fmt: skip
        print(json.dumps(told), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("queues", nargs="+", choices=QUEUES, help="one after the other")
    parser.add_argument("--data", default="", help="the folder of the data")
    parser.add_argument("--out", type=Path, required=True, help="the file to append records to")
    parser.add_argument("--seconds", type=float, default=540, help="begin nothing that would end later")
    parser.add_argument("--processes", type=int, default=1, help="runs at a time")
    parser.add_argument("--seeds", type=int, help="as many as the queue says, if left out")
    parser.add_argument("--limit", type=int, help="at most so many runs")
    parser.add_argument("--expect", type=float, default=0, help="seconds a step takes, until a run has been timed")
    parser.add_argument("--mps", action="store_true", help="share the GPU by its multi-process service")
    parser.add_argument("--set", nargs="*", default=[], help="settings for all runs, as lr=0.2")
    parser.add_argument("--tiny", action="store_true", help="two epochs on digits, to rehearse")
    args = parser.parse_args()
    deadline = time.time() + args.seconds
    changes = {key: json.loads(value) for key, _, value in (text.partition("=") for text in args.set)}
    if args.tiny:
        changes |= {"task": "digits", "model": "conv", "epochs": 9, "amp": "none", "threads": 1, "device": "cpu"}
    runs = [run for name in args.queues for run in QUEUES[name](**({"seeds": args.seeds} if args.seeds else {}))]
    past = known(KEPT, args.out)
    done = {identity(run.settings) for run in past}
    todo = [run for run in (run.but(data=args.data, **changes) for run in runs) if identity(run) not in done]
    todo = todo[: args.limit]
    print(f"{len(todo)} runs wanted, {len(done)} records there", flush=True)
    if args.mps:
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=False)
    context = mp.get_context("spawn")
    taken, pace = context.Array("b", len(todo)), context.Value("d", args.expect)
    sizes = {name: size_of(make_task(name, args.data).train) for name in sorted({run.task for run in todo})}
    plain, steps = [run.plain() for run in todo], [steps_of(run, sizes[run.task], past) for run in todo]
    workers = [
        context.Process(target=work, args=(plain, steps, taken, args.out, deadline, pace))
        for _ in range(args.processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    sys.exit(any(worker.exitcode for worker in workers))


if __name__ == "__main__":
    main()
