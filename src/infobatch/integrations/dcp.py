"""torch.distributed.checkpoint: each rank writes its part of the state, any number of ranks reads it back."""

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


class Sharded:
    """A pruned data set for ``torch.distributed.checkpoint``: each rank writes its part, any number of ranks reads.

    ``dcp.save({"data": Sharded(train_data)}, checkpoint_id=folder)`` and ``dcp.load`` with the same. That
    library fills the tensors its reader already has, so the state has one shape here, in an epoch and between two.
    """

    def __init__(self, train_data: Pruned) -> None:
        if train_data.shard_scores:
            raise InputError(
                message(
                    "scores in one table",
                    "shard_scores=True",
                    "Each rank's state_dict() is its part already: save it to a file a rank with infobatch.save.",
                )
            )
        self.train_data = train_data

    def state_dict(self) -> dict[str, Any]:
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
            tables[f"memory.{name}"] = column
        for name in self._came:
            tables[f"came.{name}"] = (
                running["came"][name] if running else torch.full((size,), torch.nan, dtype=torch.float32)
            )
        order = torch.full((size,), -1)
        kept = running.get("indices", order[:0])
        order[: kept.numel()] = kept
        return {
            "facts": json.dumps(state),
            **{name: self._shard(table) for name, table in {**tables, "order": order}.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        facts = json.loads(state["facts"])
        whole = {name: self._whole(tensor) for name, tensor in state.items() if name != "facts"}
        memory, came = (
            {name.removeprefix(prefix): whole[name] for name in whole if name.startswith(prefix)}
            for prefix in ("memory.", "came.")
        )
        running = None
        if facts["done"]:
            indices = whole["order"][whole["order"] >= 0]
            tables = {name: whole.get(name) for name in ("table", "fresh", "chosen")}
            running = {"indices": indices, "came": came, **tables}
        loaded = {**facts, "scores": whole["scores"], "memory": memory, "running": running}
        self.train_data.load_state_dict(loaded)

    @property
    def _came(self) -> frozenset[str]:
        return self.train_data.method.needs & {"confidence"}

    def _shard(self, tensor: Tensor) -> Tensor:
        ranks = find(self.train_data.group)
        if ranks.world == 1:
            return tensor
        group: Any = ranks.group if ranks.group is not None else dist.group.WORLD
        mesh = DeviceMesh.from_group(group, "cpu")
        return distribute_tensor(tensor, mesh, [Shard(0)], src_data_rank=None)

    def _whole(self, tensor: Tensor) -> Tensor:
        """By way of objects, for which any backend will do: NCCL would not take a part from the host's memory."""
        if not isinstance(tensor, DTensor):
            return tensor
        ranks = find(self.train_data.group)
        parts: list[Any] = [None] * ranks.world
        dist.all_gather_object(parts, tensor.to_local(), group=ranks.group)
        return torch.cat(parts)
