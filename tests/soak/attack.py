"""Attack the package: play random training loops against an oracle that knows every score, weight and step size.

    python -m tests.soak.attack --minutes 5

Each case draws data, a method, a loader and what the loop does from its seed, in a process of its own. A case

  held      if every loss reached its sample, with the right weight and the right step size;
  refused   if the package raised a clear InfoBatchError, and was right in everything before and after it;
  fault     if a score, weight, step, plan or history was wrong, if something hung, or if an internal error came out.

Each fault is printed with the command that replays it. The exit status is 1 if there was one.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from . import kinds, runner
from .runner import FAULT, Outcome

EXAMPLES = """examples:
  python -m tests.soak.attack --minutes 5                        all kinds, new seeds each time
  python -m tests.soak.attack --cases 200 --seed 0               always the same 200 cases
  python -m tests.soak.attack --only resume,kill --minutes 2     two kinds only
  python -m tests.soak.attack --only resume --seed 17 --cases 1 --verbose    one case again, with its set-up and trace

kinds:
"""


def make_parser() -> argparse.ArgumentParser:
    width = max(map(len, kinds.KINDS))
    lines = [f"  {name:{width}}  {kind.summary}" for name, kind in kinds.KINDS.items()]
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.attack",
        description=__doc__,
        epilog=EXAMPLES + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, help="how long to go on; 1 if --cases is not given")
    parser.add_argument("--cases", type=int, help="how many cases to play")
    parser.add_argument(
        "--seed", type=int, help="the seed of the first case, from which on they count up; new by default"
    )
    parser.add_argument("--only", metavar="KIND[,KIND]", help="these kinds only; see below")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write counts and faults there, too")
    parser.add_argument("--verbose", action="store_true", help="print each case")
    return parser


def draw_cases(names: list[str], seed: int, count: int | None, deadline: float | None) -> Iterator[tuple[str, int]]:
    """Yield (kind, seed); the kind of a case follows from its seed."""
    for number in itertools.count():
        if (count is not None and number >= count) or (deadline is not None and time.monotonic() >= deadline):
            return
        lot = random.Random(seed + number)
        (name,) = lot.choices(names, [kinds.KINDS[name].share for name in names])
        yield name, seed + number


class Score:
    """Counts what happened, and shows it."""

    def __init__(self, *, verbose: bool) -> None:
        self.verbose = verbose
        self.counts: Counter[tuple[str, str]] = Counter()
        self.updates = 0
        self.refusals: Counter[str] = Counter()
        self.faults: dict[str, list[Outcome]] = {}
        self.began = self._told = time.monotonic()

    def note(self, outcome: Outcome) -> None:
        self.counts[outcome.kind, outcome.result] += 1
        self.updates += outcome.updates
        self.refusals.update(outcome.refusals)
        if self.verbose:
            self._say(f"{outcome.kind} {outcome.seed}: {outcome.result}, {outcome.seconds:.2f} s; {outcome.world}")
            for refusal in outcome.refusals:
                self._say(f"    refused: {refusal}")
        if outcome.result == FAULT:
            found = self.faults.setdefault(outcome.signature, [])
            found.append(outcome)
            if len(found) == 1 or self.verbose:
                self._say(f"FAULT {outcome.kind} {outcome.seed}: {outcome.fault}")
            if self.verbose:
                self._say(outcome.trace)
        self._show_progress()

    def total(self, result: str) -> int:
        return sum(count for (_, ended), count in self.counts.items() if ended == result)

    def _show_progress(self) -> None:
        now, is_terminal = time.monotonic(), sys.stderr.isatty()
        if now - self._told < (0.2 if is_terminal else 10.0):
            return
        self._told = now
        line = f"{now - self.began:5.0f} s: {self.line()}"
        print(f"\r{line}\033[K" if is_terminal else line, end="" if is_terminal else "\n", file=sys.stderr, flush=True)

    def line(self) -> str:
        held, refused, fault = (self.total(result) for result in (runner.HELD, runner.REFUSED, FAULT))
        tried = held + refused + fault
        return f"{tried} tried, {held} held, {refused} refused, {fault} with a fault ({len(self.faults)} different)"

    def _say(self, text: str) -> None:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        print(text, flush=True)

    def summary(self) -> str:
        names = sorted({name for name, _ in self.counts})
        width = max([4, *map(len, names)])
        rows = [f"{'kind':{width}}   tried    held refused  faults"]
        for name in names:
            numbers = [self.counts[name, result] for result in (runner.HELD, runner.REFUSED, FAULT)]
            rows.append(f"{name:{width}} " + "".join(f"{number:8}" for number in [sum(numbers), *numbers]))
        for found in sorted(self.faults.values(), key=len, reverse=True):
            first = found[0]
            where = ", ".join(f"{name} {count}" for name, count in Counter(one.kind for one in found).most_common())
            rows += ["", f"FAULT ({where} times): {first.fault}", f"    with {first.world}"]
            rows.append(f"    python -m tests.soak.attack --only {first.kind} --seed {first.seed} --cases 1 --verbose")
        rows += ["", f"{self.line()}; {self.updates} updates checked, {time.monotonic() - self.began:.0f} s"]
        return "\n".join(rows)

    def write(self, path: Path, seed: int) -> None:
        counts = {name: {} for name, _ in self.counts}  # type: dict[str, dict[str, int]]
        for (name, result), count in self.counts.items():
            counts[name][result] = count
        faults = [
            {"times": len(found), "seeds": [one.seed for one in found[:20]], **asdict(found[0])}
            for found in self.faults.values()
        ]
        facts = {"seed": seed, "updates": self.updates, "counts": counts, "faults": faults}
        path.write_text(json.dumps({**facts, "refusals": dict(self.refusals.most_common())}, indent=1))


def main(words: list[str] | None = None) -> int:
    parser = make_parser()
    args = parser.parse_args(words)
    names = list(kinds.KINDS) if args.only is None else args.only.split(",")
    for name in names:
        if name not in kinds.KINDS:
            parser.error(f"no kind {name!r}: take one of {', '.join(kinds.KINDS)}")
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(10**6) * 1000
    minutes = 1.0 if args.minutes is None and args.cases is None else args.minutes
    torch.set_num_threads(1)
    kinds.warm_up()
    gc.collect()
    gc.freeze()  # what is imported stays, and need not be looked through in every process
    print(f"seed {seed}; {', '.join(names)}", flush=True)
    score = Score(verbose=args.verbose)
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    try:
        runner.run(draw_cases(names, seed, args.cases, deadline), max(1, args.jobs), score.note)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
    print(f"\n{score.summary()}", flush=True)
    if args.json is not None:
        score.write(args.json, seed)
    return int(bool(score.faults))


if __name__ == "__main__":
    raise SystemExit(main())
