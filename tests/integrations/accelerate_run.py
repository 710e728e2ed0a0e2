"""One small training task, trained in a plain loop and under Accelerate.

The tests import it for one process. Started as two ranks, it trains on both and saves the results for comparison.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, TensorDataset

import infobatch
from infobatch.integrations.accelerate import prepare

SIZE, EPOCHS, BATCH = 101, 8, 6


@dataclass(frozen=True)
class Run:
    accumulate: int = 1
    paced: bool = True
    """Whether there is a scheduler, paced; without one the loss grows."""
    precision: str = "no"
    device: str = "cpu"
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the loader."""
    ragged: bool = False
    """Whether a batch sampler without a length makes the batches."""
    save: tuple[int, int] | None = None
    """(epoch, step) after which to save and stop."""
    folder: str = ""
    load: bool = False
    within: Callable[[Any], None] | None = None
    """Called in the middle of each epoch."""


class Ragged:
    """A batch sampler with batches of different sizes and no length."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) >= 3 + index % 5:
                yield batch
                batch = []
        if batch:
            yield batch


class Parts:
    """Everything that a training needs, the same in every run."""

    def __init__(self, run: Run) -> None:
        self.ragged = run.ragged
        noise = torch.Generator().manual_seed(7)
        x = torch.randn(SIZE, 4, generator=noise)
        y = (x.sum(1, keepdim=True) + 0.3 * torch.randn(SIZE, 1, generator=noise)).sin()
        data: Dataset[Any] = TensorDataset(x, y)
        grows: Any = "none" if run.paced else "loss"
        self.train = infobatch.InfoBatch(data, EPOCHS, delta=0.75, seed=3, compensate=grows)
        torch.manual_seed(0)
        self.model: Any = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer: Any = torch.optim.AdamW(self.model.parameters(), lr=0.02)
        world = dist.get_world_size() if dist.is_initialized() else 1
        batch = BATCH // world
        self.steps = math.ceil(math.ceil(math.ceil(SIZE / world) / batch) / run.accumulate)
        self.cosine = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, EPOCHS * self.steps)
        self.scheduler: Any = None
        if run.paced:
            self.scheduler = infobatch.pace(self.cosine, self.train, self.steps)
        if run.ragged:
            self.loader: Any = infobatch.DataLoader(self.train, batch_sampler=Ragged(self.train.sampler))
        else:
            self.loader = infobatch.DataLoader(self.train, batch_size=batch, **run.options)
        self.log: list[dict[str, Any]] = []

    def losses(self, predicted: torch.Tensor, batch: Any) -> torch.Tensor:
        return (predicted.float() - batch[1]).square().squeeze(1)

    def length(self) -> int | None:
        return None if self.ragged else len(self.loader)

    def note(self, epoch: int) -> dict[str, Any]:
        if not self.log or self.log[-1]["epoch"] != epoch:
            length = None if self.ragged else self.loader.count_batches()
            self.log.append({"epoch": epoch, "batches": [], "rates": [], "length": length, "now": []})
        return self.log[-1]

    def result(self) -> dict[str, Any]:
        scores = self.train.scores
        model = getattr(self.model, "module", self.model)
        return {
            "scores": scores,
            "history": [asdict(report) for report in self.train.history],
            "model": {name: value.clone() for name, value in model.state_dict().items()},
            "ends": self.cosine.last_epoch,
            "log": self.log,
        }


def plain(run: Run) -> dict[str, Any]:
    """Train in the loop of the README, accumulating gradients up to the end of each epoch."""
    parts = Parts(run)
    parts.model.to(run.device)
    if dist.is_initialized():
        parts.model = DistributedDataParallel(parts.model)
    for epoch in range(EPOCHS):
        note = parts.note(epoch)
        for number, (x, y) in enumerate(parts.loader, 1):
            batch = x.to(run.device), y.to(run.device)
            sync = number % run.accumulate == 0 or number == parts.length()
            with nullcontext() if sync or not dist.is_initialized() else parts.model.no_sync():
                with torch.autocast(run.device, torch.bfloat16, enabled=run.precision == "bf16"):
                    predicted = parts.model(batch[0])
                loss = parts.train.update(parts.losses(predicted, batch))
                (loss / run.accumulate).backward()
            note["batches"].append(batch[0])
            if sync:
                parts.optimizer.step()
                parts.optimizer.zero_grad()
                if parts.scheduler is not None:
                    parts.scheduler.step()
                note["rates"].append(parts.optimizer.param_groups[0]["lr"])
    return parts.result()


def accelerated(run: Run) -> dict[str, Any]:
    """Train the same task under Accelerate."""
    alone = {"gradient_accumulation_steps": run.accumulate, "mixed_precision": run.precision}
    accelerator = Accelerator(cpu=run.device == "cpu", **alone)
    parts = Parts(run)
    parts.model, parts.optimizer, parts.loader = prepare(accelerator, parts.model, parts.optimizer, parts.loader)
    if parts.scheduler is not None:
        parts.scheduler = prepare(accelerator, parts.scheduler)
    if run.load:
        accelerator.load_state(run.folder)
    held_out = accelerator.prepare(DataLoader(TensorDataset(torch.ones(12, 4), torch.ones(12, 1)), batch_size=2))
    for epoch in range(parts.train.epoch, EPOCHS):
        note = parts.note(epoch)
        for step, batch in enumerate(parts.loader):
            with accelerator.accumulate(parts.model):
                accelerator.backward(parts.train.update(parts.losses(parts.model(batch[0]), batch)))
                parts.optimizer.step()
                if parts.scheduler is not None:
                    parts.scheduler.step()
                parts.optimizer.zero_grad()
            note["batches"].append(batch[0])
            note["now"].append(parts.length())
            if accelerator.sync_gradients:
                note["rates"].append(parts.optimizer.param_groups[0]["lr"])
            if step == 1 and run.within is not None:
                run.within(held_out)
            if run.save == (epoch, step):
                accelerator.save_state(run.folder)
                return {}
        note["left over"] = any(weight.grad is not None for weight in parts.model.parameters())
        with torch.no_grad():
            note["validated"] = sum(len(parts.model(x)) for x, _ in held_out)
    return parts.result()


def start_anew() -> None:
    """Reset Accelerate's state, which is shared by the whole process, as in a new process."""
    AcceleratorState._reset_state(reset_partial_state=not dist.is_initialized())
    GradientState._reset_state()


def error_text(act: Callable[[], Any]) -> str:
    try:
        act()
    except infobatch.InputError as error:
        return str(error)
    return "nothing was refused"


def refusals() -> dict[str, str]:
    """Collect the errors that only several processes can cause."""
    errors = {}
    parts, accelerator = Parts(Run()), Accelerator(cpu=True)
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    parts.train.group = alone
    errors["group"] = error_text(lambda: prepare(accelerator, parts.loader))
    data = TensorDataset(torch.rand(8, 1))
    apart = infobatch.DataLoader(infobatch.InfoBatch(data, 8, shard_scores=True), batch_size=2)
    errors["shards"] = error_text(lambda: prepare(accelerator, apart))
    far = infobatch.pace(parts.cosine, parts.train, 2 * parts.steps)
    parts.train.group = None
    errors["steps"] = error_text(lambda: prepare(accelerator, parts.loader, far))
    start_anew()
    split = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
    errors["split"] = error_text(lambda: prepare(split, parts.loader))
    start_anew()
    return errors


def synchronized_number() -> float:
    """Return a random number after Accelerate has synchronized the random states of the processes."""
    loader = prepare(Accelerator(cpu=True, rng_types=["torch", "generator"]), Parts(Run(paced=False)).loader)
    torch.manual_seed(dist.get_rank())
    next(iter(loader))
    return torch.rand(()).item()


def main() -> None:
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    Accelerator(cpu=True)  # makes the process group
    rank = dist.get_rank()
    results: dict[str, Any] = {}
    for accumulate in (1, 4):
        run = Run(accumulate)
        start_anew()
        results[f"accelerated {accumulate}"] = accelerated(run)
        results[f"plain {accumulate}"] = plain(run)
    start_anew()
    accelerated(Run(4, save=(3, 3), folder=str(out / "state")))
    start_anew()
    results["resumed"] = accelerated(Run(4, folder=str(out / "state"), load=True))
    start_anew()
    results["refusals"] = refusals()
    results["random"] = synchronized_number()
    torch.save(results, out / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
