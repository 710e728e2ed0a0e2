"""Time and memory of selectors: by default those that must choose 10 % of 50,000 x 512 within two minutes.

Each is measured in a process of its own, on features that are plain noise (the hardest to tell apart) and on ten
clusters as a trained network makes them. Memory is what the process took beyond the evidence: the system's VmHWM on
the CPU, torch's own count on a GPU. CPU seconds beside the seconds say how busy the machine was: with two threads and
nothing else running they are nearly twice as many. `--tiny` only shows that everything works.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from infobatch.lab.papers.microbench import processor
from infobatch.selection import SELECTORS, Evidence

LIMITED = ("k_center", "herding", "facility_location", "graph_cut")
LIMIT = 120.0
CLASSES = 10


@dataclass(frozen=True)
class Row:
    method: str
    data: str
    size: int
    width: int
    share: float
    balanced: bool
    seconds: float
    cpu_seconds: float
    bytes_a_sample: float
    device: str
    threads: int
    torch: str


def features(kind: str, size: int, width: int) -> Tensor:
    """Make features [size, width] like those after an activation: nonnegative and in clusters, or noise."""
    lot = torch.Generator().manual_seed(0)
    noise = torch.randn(size, width, generator=lot)
    if kind == "noise":
        return noise
    centres = torch.randn(CLASSES, width, generator=lot)
    within = torch.randn(size, 64, generator=lot) @ torch.randn(64, width, generator=lot) / 8
    return (centres[torch.arange(size) % CLASSES] + within + 0.3 * noise).relu_()


def evidence(kind: str, size: int, width: int) -> Evidence:
    x = features(kind, size, width)
    head = torch.randn(CLASSES, width, generator=torch.Generator().manual_seed(1)) / width**0.5
    logits = x @ head.T
    row = torch.rand(2, size, generator=torch.Generator().manual_seed(2))
    known = {"aum": row[0], "error_norms": row, "grad_norms": row, "head": head}
    return Evidence(size, labels=torch.arange(size) % CLASSES, features=x, logits=logits, correct=row > 0.5, **known)


def peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def measured(options: argparse.Namespace) -> Row:
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    choose = SELECTORS[options.one]
    choose(evidence("noise", 200, 8).to(device), 0.1)  # loads all libraries first
    known = evidence(options.data, options.size, options.width).to(device)
    if device.type == "cpu":
        Path("/proc/self/clear_refs").write_text("5")
    before, start, cpu = peak(device), perf_counter(), process_time()
    choose(known, options.share, balanced=options.balanced)
    seconds, cpu = perf_counter() - start, process_time() - cpu
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"{processor()}, {os.cpu_count()} cores"
    return Row(
        options.one,
        options.data,
        options.size,
        options.width,
        options.share,
        options.balanced,
        round(seconds, 2),
        round(cpu, 2),
        round((peak(device) - before) / options.size, 1),
        name,
        options.threads,
        torch.__version__,
    )


def row(name: str, data: str, arguments: list[str]) -> Row:
    command = [sys.executable, __file__, *arguments, "--one", name, "--data", data]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Row(**json.loads(answer.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", default=list(LIMITED), help="names, or all")
    parser.add_argument("--size", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--balanced", action="store_true")
    parser.add_argument("--data", choices=["noise", "clusters"], help="only this kind")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="one JSON line per row")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tiny:
        options.size, options.width = 400, 16
    if options.one:
        print(json.dumps(asdict(measured(options))))
        return
    names = list(SELECTORS) if options.methods == ["all"] else options.methods
    kinds = [options.data] if options.data else ["noise", "clusters"]
    same = [f"--{name}={getattr(options, name)}" for name in ("size", "width", "share", "device", "threads")]
    same += ["--balanced"] if options.balanced else []
    todo = [(name, kind) for name in names for kind in kinds]
    rows = [row(*one, same) for one in track(todo, "measuring", console=Console(stderr=True), transient=True)]
    if options.json:
        for one in rows:
            print(json.dumps(asdict(one)))
        return
    title = f"{options.share:.0%} of {options.size} x {options.width} on {rows[0].device}"
    table = Table(title=title, box=SIMPLE)
    for column in ("method", "data", "seconds", "CPU seconds", "bytes a sample", "within 2 min"):
        table.add_column(column, justify="left" if column in ("method", "data") else "right")
    for one in rows:
        verdict = ("yes" if one.seconds <= LIMIT else "no") if one.method in LIMITED else ""
        table.add_row(
            one.method, one.data, f"{one.seconds:.1f}", f"{one.cpu_seconds:.1f}", f"{one.bytes_a_sample:.0f}", verdict
        )
    Console().print(table)


if __name__ == "__main__":
    main()
