"""Set up trials of a loader, each with fresh training data, on copies of everything a pass would change."""

from __future__ import annotations

import copy
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, Sampler

from ... import methods
from ...dataset import Pruned
from ...loader import DataLoader
from ..train.method_text import needs_losses_only
from .case import Case
from .content import follows_index
from .probe import Trial
from .tracing import Log, Marked, Where, fetch, fingerprint, rows

Order = Literal["kept", "changed", "apart", "mixed", "unknown"]
"""What a collate_fn does to the order of the samples in a batch; apart: some fields are kept and others moved."""
TAKEN = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")


@dataclass(frozen=True)
class Sandbox:
    """Makes trials of one case."""

    case: Case
    size: int
    """How many samples of the data set are used, from the first on."""
    epochs: int
    folder: Path

    def unchanged(self) -> Trial | None:
        """Copy the loader unchanged; None if a pass would touch the user's own objects."""
        known, folder = self.case.data, self._new_folder()
        assert known is not None
        data = self._wrap_fresh(folder)
        return self._trial({id(known): data, id(known.sampler): data.sampler}, data, folder, self.case.yields_pairs)

    def with_ours(self, with_indices: bool = False) -> Trial | None:
        """Pass the same arguments to an infobatch.DataLoader; None if there is no loader to take them from."""
        case, inner = self.case, self.case.inner
        if inner is None:
            return None
        folder = self._new_folder()
        data = self._wrap_fresh(folder)
        taken = {name: getattr(inner, name) for name in TAKEN if hasattr(inner, name)}
        if inner.num_workers:
            taken |= {"prefetch_factor": inner.prefetch_factor, "persistent_workers": inner.persistent_workers}
        if case.own_batches is not None and case.data is not None and case.draws_from_plan:
            taken["batch_sampler"] = graft(case.own_batches, {id(case.data.sampler): data.sampler})
        else:
            taken |= {"batch_size": case.batch_size, "drop_last": inner.drop_last}
        with_indices = with_indices or case.yields_pairs
        ours = DataLoader(data, collate_fn=case.collate, with_indices=with_indices, **taken)
        return self._trial({id(inner): ours}, data, folder, with_indices)

    def first(self) -> Trial | None:
        """Train as the user does or, if nothing is wrapped, as with the suggested lines."""
        return self.with_ours() if self.case.data is None else self.unchanged()

    def by_index(self, before: Trial) -> Trial | None:
        """Try again with the indices that come with each batch; None if there are none, or they do not help."""
        where = before.traces[0].index() if before.failed is None and before.account.wrong else None
        trial = None if where is None else self.first()
        if trial is None:
            return None
        trial.by = where
        trial.run(self.epochs)
        return trial if trial.failed is None and not trial.account.wrong else None

    def with_remedy(self) -> Trial | None:
        """Try infobatch.DataLoader; if a wrapper makes that fail, try it with the indices beside each batch."""
        plain = self.with_ours()
        if plain is None or plain.run(self.epochs).failed is None or not self.case.around:
            return plain
        pairs = self.with_ours(with_indices=True)
        return pairs and pairs.run(self.epochs)

    def order(self, trial: Trial) -> Order:
        total = trial.account
        if total.inside or trial.moved:
            return "apart" if total.right and not total.wrong else "changed"
        if total.right and not trial.traces[0].placement[1]:
            return "kept"
        found = probe(self.case, self.size) if trial.failed is None else {}
        if total.right:
            recognized = [where for where, keys in trial.traces[0].keys.items() if all(keys)]
            return "apart" if "changed" in {found[where] for where in found.keys() - recognized} else "kept"
        orders = set(found.values())
        if {"kept", "changed"} <= orders:  # mixup returns the labels twice: in order, and of the partners
            return "mixed" if "mixed" in orders else "apart"
        order: Order
        for order in ("changed", "mixed", "kept"):
            if order in orders:
                return order
        return "unknown"

    def follows_index(self) -> bool:
        return follows_index(self.case.dataset, self.size)

    def _new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder))

    def _wrap_fresh(self, folder: Path) -> Pruned:
        """Wrap the data as the user does; with InfoBatch if a trial lacks what the user's method needs, because the
        method does not affect which sample a loss goes to."""
        marked, known = Marked(self.case.dataset, folder, self.size), self.case.data
        if known is None:
            return Pruned(marked, methods.infobatch(), max(8, self.epochs))
        return Pruned(
            marked,
            known.method if needs_losses_only(known.method, self.size) else methods.infobatch(),
            max(known.num_epochs, self.epochs),
            seed=known.seed,
            compensate=known.compensate,
            group=known.group,
            shard_scores=known.shard_scores,
        )

    def _trial(self, swaps: dict[int, Any], data: Pruned, folder: Path, pairs: bool) -> Trial | None:
        case = self.case
        loader = graft(case.given, swaps)
        if loader is case.given or hasattr(loader, "__next__"):
            return None
        inner = swaps.get(id(case.inner))
        if inner is not None and inner.dataset is not data:
            inner.__dict__["dataset"] = Marked(inner.dataset, folder, self.size)
        single = case.inner is not None and case.batch_size is None
        return Trial(loader, data, Log(folder), pairs, single)


def graft(thing: Any, swaps: dict[int, Any], depth: int = 5) -> Any:
    """Copy a loader, a sampler or an object that wraps them, with some objects replaced; everything else is shared.

    Args:
        thing: The object to copy.
        swaps: Replacements by ``id``; copies are added to it.
        depth: How deep to search.

    Returns:
        The copy, or the object itself if it contains nothing to replace.
    """
    if id(thing) in swaps:
        return swaps[id(thing)]
    if isinstance(thing, torch.Generator):
        return torch.Generator(thing.device).set_state(thing.get_state())
    if depth == 0 or isinstance(thing, (Dataset, Tensor, type, ModuleType)) or not hasattr(thing, "__dict__"):
        return thing
    swaps[id(thing)] = thing  # a reference back to it is not followed again
    changed: dict[str, Any] = {}
    for name, value in vars(thing).items():
        if isinstance(thing, TorchLoader) and name == "_iterator":
            changed[name] = None  # persistent workers belong to the user's iterator
        elif (new := graft(value, swaps, depth - 1)) is not value:
            changed[name] = new
    if changed or isinstance(thing, (TorchLoader, Sampler)):
        swaps[id(thing)] = made = copy.copy(thing)
        made.__dict__.update(changed)
        return made
    return thing


def probe(case: Case, size: int) -> dict[Where, Order]:
    """Find out what a collate_fn does to the order of samples, for each field of a batch.

    Replacing one sample of a batch by its neighbour must change that sample's row and no other. A collate_fn that
    sorts is also found by reversing the samples: its rows stay the same.
    """
    if case.inner is None:
        return {}
    try:
        spread = range(0, size, max(1, size // 8))[:8]  # neighbors often have the same label
        samples = list(fetch(case.dataset, spread))
        usual, turned = _collated(case, samples), _collated(case, samples[::-1])
        exchanged = [
            _collated(case, [*samples[:at], samples[at - 1], *samples[at + 1 :]]) for at in range(len(samples))
        ]
    except (Exception, SystemExit):
        return {}  # collate_fn works only inside the loader
    return {
        where: _order_of(usual[where], turned.get(where), [other.get(where) for other in exchanged]) for where in usual
    }


def _order_of(usual: list[int], turned: list[int] | None, exchanged: list[list[int] | None]) -> Order:
    """Classify one field of a batch."""
    moved = [
        [row for row, pair in enumerate(zip(usual, other, strict=True)) if pair[0] != pair[1]] if other else []
        for other in exchanged
    ]
    own = sum(rows == [at] for at, rows in enumerate(moved))
    several = sum(len(rows) > 1 for rows in moved)
    strange = sum(len(rows) == 1 for rows in moved) - own
    if not any(moved):
        return "unknown"  # the samples do not matter, as in torch.arange(batch_size)
    if strange or usual == turned != usual[::-1]:
        return "changed"
    if several > own:
        return "mixed"
    return "kept" if own else "unknown"


def _collated(case: Case, samples: list[Any]) -> dict[Where, list[int]]:
    """Collate samples with the same random numbers each time, and fingerprint the rows."""
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    return {where: [fingerprint(row) for row in each] for where, each in rows(case.collate(samples), len(samples))}
