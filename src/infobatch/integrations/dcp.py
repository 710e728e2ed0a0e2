"""torch.distributed.checkpoint: each rank writes its part of the state, and any number of ranks reads it back."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from ..dataset import Pruned
from ..errors import InputError, message
from ..ranks.exchange import find

__all__ = ["Sharded"]

CHANNEL = "channels."
"""Prefix of the tensors that hold what ``update`` received besides the loss."""
MEMORY = "memory."
"""Prefix of the tensors that a method remembers per sample."""


def __dir__() -> list[str]:
    return [*__all__]


class Sharded:
    """Pruned training data as a stateful object for ``torch.distributed.checkpoint``.

    That library fills tensors which the reader has already allocated. The state therefore has the same shape inside an
    epoch and between two.

    Args:
        train_data: The training data, without ``shard_scores``.

    Raises:
        InputError: If the scores are sharded over the ranks already.

    >>> import infobatch
    >>> from infobatch.integrations.dcp import Sharded
    >>> train_data = infobatch.InfoBatch(range(8), num_epochs=8)
    >>> for x in infobatch.DataLoader(train_data, batch_size=4):
    ...     loss = train_data.update(x / 8)
    >>> resumed = infobatch.InfoBatch(range(8), num_epochs=8)
    >>> state = Sharded(train_data).state_dict()  # as dcp.save({"data": Sharded(train_data)}, checkpoint_id=folder)
    >>> Sharded(resumed).load_state_dict(state)  # as dcp.load({"data": Sharded(resumed)}, checkpoint_id=folder)
    >>> resumed.epoch
    1
    """

    def __init__(self, train_data: Pruned) -> None:
        if train_data.shard_scores:
            raise InputError(
                message(
                    "scores in one table",
                    "shard_scores=True",
                    "Each rank's state_dict() is its shard already: save it to one file per rank with infobatch.save.",
                )
            )
        self.train_data = train_data

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors of one entry per sample, split over the ranks, and one JSON text.

        ``dcp.save`` and ``dcp.load`` call it; on several ranks, all take part.
        """
        state = self.train_data.state_dict()
        size, running = state["size"], state.pop("running") or {}
        tables = {"scores": state.pop("scores")}
        for name in ("table", "fresh"):
            value = running.get(name)
            tables[name] = torch.ones(size, dtype=torch.float32) if value is None else value
        memory = state.pop("memory")
        if "chosen" in memory:
            chosen = running.get("chosen")
            tables["chosen"] = tables["table"] != 0 if chosen is None else chosen
        for name, column in memory.items():
            tables[MEMORY + name] = column
        for name in self.train_data.method.channels:
            nothing = torch.full((size,), torch.nan, dtype=torch.float32)
            tables[CHANNEL + name] = running["channels"][name] if running else nothing
        order = torch.full((size,), -1)
        kept = running.get("indices", order[:0])
        order[: kept.numel()] = kept
        tables["order"] = order
        return {"facts": json.dumps(state), **{name: self._split(table) for name, table in tables.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state that any number of ranks has written; ``dcp.load`` calls it.

        Args:
            state: What ``state_dict`` returned, filled by ``dcp.load``.

        Raises:
            StateError: If the state does not fit the training data. Nothing is changed then.
        """
        facts = json.loads(state["facts"])
        tables = {name: self._join(tensor) for name, tensor in state.items() if name != "facts"}
        memory, channels = (
            {name.removeprefix(prefix): tables[name] for name in tables if name.startswith(prefix)}
            for prefix in (MEMORY, CHANNEL)
        )
        running = None
        if facts["done"]:
            indices = tables["order"][tables["order"] >= 0]
            epoch_tables = {name: tables.get(name) for name in ("table", "fresh", "chosen")}
            running = {"indices": indices, "channels": channels, **epoch_tables}
        loaded = {**facts, "scores": tables["scores"], "memory": memory, "running": running}
        self.train_data.load_state_dict(loaded)

    def _split(self, tensor: Tensor) -> Tensor:
        """Split a tensor over the ranks."""
        ranks = find(self.train_data.group)
        if ranks.world == 1:
            return tensor
        group: Any = ranks.group if ranks.group is not None else dist.group.WORLD
        mesh = DeviceMesh.from_group(group, "cpu")
        return distribute_tensor(tensor, mesh, [Shard(0)], src_data_rank=None)

    def _join(self, tensor: Tensor) -> Tensor:
        """Join what the ranks hold. Gathers objects, because NCCL cannot gather tensors in host memory."""
        if not isinstance(tensor, DTensor):
            return tensor
        ranks = find(self.train_data.group)
        local_tensors: list[Any] = [None] * ranks.world
        dist.all_gather_object(local_tensors, tensor.to_local(), group=ranks.group)
        return torch.cat(local_tensors)
