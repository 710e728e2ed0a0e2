"""A small training run on any number of ranks, started by the tests with torchrun. Writes what it did to a file.

The data set's samples know their index, and losses are noted in the model's own forward, so plans, scores and
models of different world sizes can be held against each other.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import infobatch


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", type=int, default=101)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--global-batch", type=int, default=12)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--loader", choices=["stock", "own"], default="own")
    parser.add_argument("--wrap", choices=["none", "ddp", "fsdp1", "fsdp2"], default="ddp")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--drop-last", action="store_true")
    parser.add_argument("--explicit", action="store_true")
    parser.add_argument("--stop-at", type=int, nargs=2, metavar=("EPOCH", "STEP"))
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--every", type=int, default=0, help="write the checkpoint every so many steps")
    parser.add_argument("--die-at", type=int, nargs=3, metavar=("RANK", "EPOCH", "STEP"))
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--differ", default="", help="what this rank gets wrong, as NAME on the last rank")
    return parser.parse_args()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def wrapped(model: nn.Module, how: str) -> nn.Module:
    if how == "ddp":
        return DistributedDataParallel(model)
    if how == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    if how == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    if not dist.is_initialized():
        return {key: value.clone() for key, value in model.state_dict().items()}
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))


def main() -> None:
    args = parse()
    torch.set_num_threads(1)
    launched = "RANK" in os.environ
    if launched:
        dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
    rank, world = (dist.get_rank(), dist.get_world_size()) if launched else (0, 1)
    odd = args.differ if rank == world - 1 else ""

    noise = torch.Generator().manual_seed(7)
    size = args.size + (odd == "size")
    x = torch.randn(size, 4, generator=noise)
    y = (x.sum(1, keepdim=True) + 0.3 * torch.randn(size, 1, generator=noise)).sin()
    data = TensorDataset(x, y, torch.arange(size))
    train = infobatch.InfoBatch(
        data, args.epochs + (odd == "epochs"), 0.25 if odd == "ratio" else 0.5, 0.8, seed=3 + (odd == "seed")
    )

    torch.manual_seed(0)
    model: nn.Module = Net()
    if launched:
        model = wrapped(model, args.wrap)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    local = args.global_batch // world
    options = {"batch_size": local, "num_workers": args.workers, "drop_last": args.drop_last}
    if args.loader == "stock":
        loader = DataLoader(train, sampler=train.sampler, **options)
    else:
        loader = infobatch.DataLoader(train, **options)

    if args.checkpoint and args.checkpoint.exists():
        state = infobatch.load(args.checkpoint)
        train.load_state_dict(state["data"])
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        inner.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    log: list[dict[str, object]] = []
    for epoch in range(train.epoch, args.epochs):
        plan, delivered = train.plan(), []
        for step, (xs, ys, ids) in enumerate(loader):
            if args.die_at == [rank, epoch, step] and not os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") > "0":
                os.kill(os.getpid(), signal.SIGKILL)
            loss = (model(xs) - ys).square().squeeze(1).to(getattr(torch, args.dtype))
            value = train.update(loss, ids) if args.explicit else train.update(loss)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            delivered += ids.tolist()
            at_stop = args.stop_at == [epoch, step]
            if args.checkpoint and (at_stop or (args.every and (step + 1) % args.every == 0)):
                state = {
                    "data": train.state_dict(),
                    "model": {key.removeprefix("module."): value for key, value in whole(model).items()},
                    "optimizer": optimizer.state_dict(),
                }
                if rank == 0:
                    infobatch.save(state, args.checkpoint)
            if at_stop:
                log.append({"epoch": epoch, "plan": plan.indices, "delivered": delivered})
                break
        else:
            log.append(
                {"epoch": epoch, "plan": plan.indices, "delivered": delivered, "scores": train.scores, "steps": step + 1}
            )
            continue
        break
    torch.save({"log": log, "model": whole(model)}, f"{args.out}.{rank}")
    if launched:
        dist.barrier() if args.die_at is None else time.sleep(0)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
