"""More samples than float32 can count: indices and scores stay exact across ranks."""

from __future__ import annotations

from pathlib import Path

from launching import run_ranks

SCRIPT = """
import sys
from itertools import islice
import numpy as np, torch, torch.distributed as dist
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
    while len(chunk := np.fromiter(islice(walk, 2_000_000), np.int64)):
        ids = torch.from_numpy(chunk)
        train.update((ids % 1_000_003).to(torch.bfloat16 if epoch else torch.float32), ids)
    if epoch == 0:
        exact = torch.equal(train.scores, (torch.arange(SIZE) % 1_000_003).float())
plan = train.plan()
unique = plan.indices.unique().numel() == plan.kept
print("exact", exact, "unique", unique, "largest", int(plan.indices.max()), flush=True)
leave()
"""


def test_above_two_to_the_24(tmp_path: Path) -> None:
    script = tmp_path / "large.py"
    script.write_text(SCRIPT)
    said = run_ranks(2, script, Path(__file__).parent).out
    assert said.count("exact True unique True") == 2
    largest = [int(line.split()[-1]) for line in said.splitlines()]
    assert min(largest) > 2**24
