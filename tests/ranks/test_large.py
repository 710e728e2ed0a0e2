"""More samples than float32 can count: indices and scores stay exact across ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from itertools import islice
import torch, torch.distributed as dist
import infobatch
sys.path.insert(0, sys.argv[1])
from leave import leave

SIZE = 2**24 + 1001

class Numbers:
    def __len__(self):
        return SIZE
    def __getitem__(self, index):
        return index

torch.set_num_threads(1)
dist.init_process_group("gloo")
train = infobatch.InfoBatch(Numbers(), 3, ratio=0.9, delta=1.0)
for epoch in range(2):
    walk = iter(train.sampler)
    while chunk := list(islice(walk, 2_000_000)):
        ids = torch.tensor(chunk)
        train.update((ids % 1_000_003).to(torch.bfloat16 if epoch else torch.float32), ids)
    if epoch == 0:
        exact = torch.equal(train.scores, (torch.arange(SIZE) % 1_000_003).float())
plan = train.plan()
unique = plan.indices.unique().numel() == plan.kept
print("exact", exact, "unique", unique, "largest", int(plan.indices.max()), flush=True)
leave()
"""


@pytest.mark.parametrize("world", [2])
def test_above_two_to_the_24(tmp_path: Path, world: int) -> None:
    script = tmp_path / "large.py"
    script.write_text(SCRIPT)
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    done = subprocess.run(
        [sys.executable, *launch, str(script), str(Path(__file__).parent)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("exact True unique True") == world
    largest = [int(line.split()[-1]) for line in done.stdout.splitlines()]
    assert min(largest) > 2**24
