"""Time pruned epochs against full ones of the same run, and their planning; print one JSON line per feed.

    python research/campaign/wallclock.py --data DIR                  # CIFAR-100 in DIR/cifar100, idle GPU
    python research/campaign/wallclock.py --data DIR --task cifar10
    python research/campaign/wallclock.py --tiny                      # a rehearsal, on digits

InfoBatch trains the headline's net for a few epochs, first with data and step on the device, then with an ordinary
loader. Its first epoch warms up and is not counted; its last ones are on full data, so both kinds come from one run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "src"))
sys.path.insert(0, str(HERE))

from wanted import TINY
from wanted.cifar import HEADLINE

from infobatch.lab.runs.records import Fact
from infobatch.lab.tasks.catalogue import make_task
from infobatch.lab.train import loop as training
from infobatch.lab.train.settings import Settings


def spent(fact: Fact) -> float:
    return float(sum(fact["seconds"][part] for part in ("data", "step", "planning")))


def measured(start: Fact, epochs: list[Fact]) -> dict[str, Any]:
    """Compare full and pruned epochs after the first: seconds each, and what pruning saved."""
    full = [fact for fact in epochs[1:] if fact["kept"] == fact["size"]]
    pruned = [fact for fact in epochs[1:] if fact["kept"] < fact["size"]]
    full_seconds = statistics.median(map(spent, full))
    return {
        "feed": start["settings"]["feed"], "workers": start["settings"]["workers"], "full_epochs": len(full),
        "pruned_epochs": len(pruned), "seconds_full": full_seconds,
        "seconds_pruned": statistics.median(map(spent, pruned)),
        "samples_saved": statistics.mean(fact["saved"] for fact in pruned),
        "seconds_saved": statistics.mean(1 - spent(fact) / full_seconds for fact in pruned),
        "planning_full": statistics.median(fact["seconds"]["planning"] for fact in full),
        "planning_pruned": statistics.median(fact["seconds"]["planning"] for fact in pruned),
        "epochs": [{"kept": fact["kept"], **fact["seconds"]} for fact in epochs],
        "settings": start["settings"], "environment": start["environment"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="", help="the folder of the data")
    parser.add_argument("--task", default=HEADLINE["task"], help="what to train on")
    parser.add_argument("--epochs", type=int, nargs=2, default=[16, 16], help="on the device, with a loader")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal on digits")
    args = parser.parse_args()
    common = {**HEADLINE, "method": "infobatch", "compensate": "none", "eval_every": 1000}
    common |= {"task": args.task, "data": args.data}
    common |= TINY if args.tiny else {}
    workers = min(12, os.cpu_count() or 1)
    feeds: list[dict[str, Any]] = [
        {"feed": "resident", "epochs": args.epochs[0]},
        {"feed": "loader", "epochs": args.epochs[1], "workers": workers},
    ]
    task = make_task(common["task"], args.data)
    for feed in feeds:
        facts = list(training.run(Settings.of({**common, **feed}), task=task))
        print(json.dumps(measured(facts[0], [fact for fact in facts if fact["kind"] == "epoch"])), flush=True)


if __name__ == "__main__":
    main()
