"""Checkpoints after any batch, read in a new process: from there on the run is the one that was not interrupted.

Run as a script, this file is that new process: it takes up every checkpoint in a folder and trains it to its end.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import run_ranks
from torch import Tensor
from torch.utils.data import TensorDataset

import infobatch
from infobatch import methods, variations
from infobatch.state_checks import FORMAT

Log = list[dict[str, Any]]

# name: loader, samples, epochs, drop_last, workers, how the losses come back, other settings
RUNS: dict[str, tuple[str, int, int, bool, int, str, dict[str, Any]]] = {
    "stock": ("stock", 22, 5, False, 0, "order", {}),
    "stock, drop_last": ("stock", 22, 5, True, 0, "order", {}),
    "stock, 2 workers": ("stock", 13, 3, False, 2, "order", {}),
    "stock, 2 workers, drop_last": ("stock", 14, 3, True, 2, "order", {}),
    "ours": ("ours", 22, 5, False, 0, "order", {}),
    "ours, drop_last": ("ours", 22, 5, True, 0, "order", {}),
    "ours, 2 workers": ("ours", 13, 3, False, 2, "order", {}),
    "indices": ("stock", 22, 4, False, 0, "indices", {}),
    "skipped batches": ("ours", 22, 4, False, 0, "skip", {}),
    "loss": ("ours", 22, 4, False, 0, "order", {"compensate": "loss"}),
    "saving": ("ours", 22, 5, False, 0, "order", {"saving": 0.3}),
    "even": ("stock", 20, 4, False, 0, "order", {"ratio": 0.0}),
}


class Training:
    """A linear model, its optimizer and its data, made the same way in every process."""

    def __init__(self, name: str) -> None:
        self.name = name
        kind, size, self.num_epochs, drop_last, workers, self.how, settings = RUNS[name]
        draw = torch.Generator().manual_seed(11)
        x = torch.randn(size, 3, generator=draw)
        y = x.sum(1) + torch.randn(size, generator=draw)
        self.data = infobatch.InfoBatch(TensorDataset(x, y, torch.arange(size)), self.num_epochs, **settings)
        self.model = torch.nn.Linear(3, 1)
        torch.nn.init.constant_(self.model.weight, 0.1)
        torch.nn.init.zeros_(self.model.bias)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=100)
        self.paced = infobatch.pace(cosine, self.data, infobatch.full_steps(self.data, 4, drop_last=drop_last))
        options: dict[str, Any] = {"batch_size": 4, "drop_last": drop_last, "num_workers": workers}
        if kind == "stock":
            self.loader: Any = torch.utils.data.DataLoader(self.data, sampler=self.data.sampler, **options)
        else:
            self.loader = infobatch.DataLoader(self.data, **options)
        self.log: Log = []

    def batches(self) -> Iterator[None]:
        """Train to the end, stopping after each batch."""
        for epoch in range(self.data.epoch, self.num_epochs):
            for x, y, z in self.loader:
                plan = self.data.plan()
                assert plan.epoch == self.data.epoch == epoch
                losses = (self.model(x).squeeze(1) - y).square()
                losses.retain_grad()
                if self.how == "skip" and 5 in z:
                    self.data.skip()
                    self.log.append({"epoch": epoch, "z": z.tolist(), "weights": [], "plan": plan.indices.tolist()})
                    yield
                    continue
                loss = self.data.update(losses, z) if self.how == "indices" else self.data.update(losses)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.paced.step()
                assert losses.grad is not None
                weights = (losses.grad * len(z)).tolist()
                self.log.append({"epoch": epoch, "z": z.tolist(), "weights": weights, "plan": plan.indices.tolist()})
                yield

    def run(self) -> Training:
        for _ in self.batches():
            pass
        return self

    def state_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "done": len(self.log),
            "data": self.data.state_dict(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "paced": self.paced.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.data.load_state_dict(state["data"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.paced.load_state_dict(state["paced"])

    def outcome(self) -> dict[str, Any]:
        return {
            "log": self.log,
            "weight": self.model.weight.detach(),
            "bias": self.model.bias.detach(),
            "scores": self.data.scores,
            "history": [vars(report) for report in self.data.history],
            "epoch": self.data.epoch,
        }


def go_through(folder: Path) -> None:
    """Take up each checkpoint of the folder and write what came of it beside it."""
    for path in sorted(folder.glob("*.pt")):
        state = torch.load(path, weights_only=True)
        training = Training(state["name"])
        training.load_state_dict(state)
        torch.save(training.run().outcome(), path.with_suffix(".out"))


def equal(one: Any, two: Any) -> bool:
    """To the last bit; NaN equals NaN."""
    if isinstance(one, Tensor):
        return one.dtype == two.dtype and one.numpy().tobytes() == two.numpy().tobytes()
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(equal(one[key], two[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(two) and all(map(equal, one, two))
    return type(one) is type(two) and bool(one == two)


def save_everywhere(name: str, folder: Path) -> None:
    """One run that stops after each batch to write, by turns with our save and with torch's."""
    training = Training(name)
    safe = name.replace(", ", "-").replace(" ", "_")
    infobatch.save(training.state_dict(), folder / f"{safe}-000.pt")
    for number, _ in enumerate(training.batches(), start=1):
        write: Callable[..., Any] = infobatch.save if number % 2 else torch.save
        write(training.state_dict(), folder / f"{safe}-{number:03d}.pt")
    write(training.state_dict(), folder / f"{safe}-end.pt")


def break_and_save(name: str, folder: Path) -> None:
    """Runs that are left in the middle of an epoch; written when the loop and its iterator are gone."""
    for stop in (1, 3, 6, 8):
        training = Training(name)
        for _ in training.batches():
            if len(training.log) == stop:
                break
        infobatch.save(training.state_dict(), folder / f"break-{name.replace(' ', '_')}-{stop}.pt")


@pytest.mark.slow
def test_a_run_goes_on_in_a_new_process_from_any_batch(tmp_path: Path) -> None:
    for name in RUNS:
        save_everywhere(name, tmp_path)
    for name in ("stock", "ours", "ours, 2 workers", "stock, drop_last"):
        break_and_save(name, tmp_path)
    run_ranks(1, Path(__file__), tmp_path)

    whole = {name: Training(name).run().outcome() for name in RUNS}
    pruned = [name for name in RUNS if any(report["saved"] > 0 for report in whole[name]["history"])]
    assert set(pruned) == set(RUNS) - {"even"}
    count = 0
    for path in sorted(tmp_path.glob("*.pt")):
        state = torch.load(path, weights_only=True)
        out = torch.load(path.with_suffix(".out"), weights_only=True)
        expected = whole[state["name"]]
        assert equal(out.pop("log"), expected["log"][state["done"] :]), path.name
        assert equal(out, {key: value for key, value in expected.items() if key != "log"}), path.name
        count += 1
    assert count > 200


def test_saving_changes_nothing() -> None:
    quiet = Training("ours").run()
    chatty = Training("ours")
    for _ in chatty.batches():
        assert equal(chatty.state_dict(), chatty.state_dict())
    assert equal(chatty.outcome(), quiet.outcome())


def test_a_state_does_not_change_with_the_run() -> None:
    training = Training("ours")
    states, copies = [], []
    for _ in training.batches():
        states.append(training.data.state_dict())
        copies.append(copy.deepcopy(states[-1]))
    assert equal(states, copies)


def test_a_loaded_state_is_not_written_to() -> None:
    first = Training("ours")
    for _ in first.batches():
        if len(first.log) == 8:
            break
    state = first.data.state_dict()
    before = copy.deepcopy(state)
    second = Training("ours")
    second.load_state_dict(first.state_dict())
    second.data.load_state_dict(state)
    second.run()
    assert equal(state, before)


def test_loading_over_a_run_in_full_swing() -> None:
    """The open iterator of the run that was is refused from then on, and the one loaded goes its way."""
    whole = Training("ours").run()
    first = Training("ours")
    for _ in first.batches():
        if len(first.log) == 8:
            break
    state = copy.deepcopy(first.state_dict())
    other = Training("ours")
    for _ in other.batches():
        if len(other.log) == 11:
            break
    other.load_state_dict(state)
    other.log = []
    other.run()
    assert equal(other.log, whole.log[8:])
    assert equal(other.model.weight.detach(), whole.model.weight.detach())


def test_the_epoch_to_go_on_with() -> None:
    """range(train_data.epoch, num_epochs) is right after any batch: the last of an epoch belongs to it."""
    training = Training("ours")
    for _ in training.batches():
        again = Training("ours")
        again.load_state_dict(training.state_dict())
        plan = training.data.plan()
        last = sum(len(entry["z"]) for entry in training.log if entry["epoch"] == training.log[-1]["epoch"])
        finished = last >= len(training.log[-1]["plan"])  # a ghost may fill up the last batch
        assert again.data.epoch == training.log[-1]["epoch"] + finished
        assert again.data.progress[1] == (0 if finished else last)
        assert torch.equal(again.data.plan().indices, plan.indices)
        assert len(again.data.sampler) == plan.kept - (0 if finished else last)


# ---- what cannot be loaded -----------------------------------------------------------------------------------


def in_an_epoch(name: str = "ours") -> Training:
    """A run stopped in an epoch that is pruned."""
    training = Training(name)
    for _ in training.batches():
        if len(training.log) == 8:
            return training
    raise AssertionError


def put(key: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    def spoil(state: dict[str, Any]) -> Any:
        where = state
        *path, last = key.split(".")
        for part in path:
            where = where[part]
        where[last] = value(where[last]) if callable(value) else value
        return state

    return spoil


def drop(key: str) -> Callable[[dict[str, Any]], Any]:
    def spoil(state: dict[str, Any]) -> Any:
        where = state
        *path, last = key.split(".")
        for part in path:
            where = where[part]
        del where[last]
        return state

    return spoil


FIELDS = ["format", "size", "method", "num_epochs", "seed", "epoch", "planned", "scores", "summaries", "running"]
SPOILT: dict[str, Callable[[dict[str, Any]], Any]] = {
    **{f"no {key}": drop(key) for key in FIELDS},
    **{f"no running.{key}": drop(f"running.{key}") for key in ("indices", "table", "fresh")},
    "one too many": lambda state: state | {"more": 1},
    "nothing": lambda state: None,
    "a list": lambda state: [state],
    "a model": lambda state: {"weight": torch.ones(3)},
    "newer format": put("format", FORMAT + 1),
    "older than the first format": put("format", 0),
    "format as text": put("format", "1"),
    "format as truth": put("format", True),
    "other length": put("size", 23),
    "length as a fraction": put("size", 22.5),
    "other method": put("method", "infobatch(ratio=0.4, delta=0.875)"),
    "no method": put("method", None),
    **{f"{key} as text": put(key, "1") for key in ("num_epochs", "seed", "epoch", "planned")},
    **{f"{key} below 0": put(key, -1) for key in ("num_epochs", "seed", "epoch", "planned")},
    "epoch as a fraction": put("epoch", 1.5),
    "scores too short": put("scores", lambda scores: scores[:-1]),
    "scores in double": put("scores", lambda scores: scores.double()),
    "scores as a list": put("scores", lambda scores: scores.tolist()),
    "scores of two dimensions": put("scores", lambda scores: scores[None]),
    "infinite scores": put("scores", lambda scores: torch.full_like(scores, torch.inf)),
    "reports of nothing": put("summaries", None),
    "a report of nothing": put("summaries", [None]),
    "a report without its numbers": put("summaries", [{"epoch": 0}]),
    "running as a list": put("running", []),
    "running as a number": put("running", 3),
    "fresh too long": put("running.fresh", lambda fresh: torch.cat([fresh, fresh])),
    "fresh in double": put("running.fresh", lambda fresh: fresh.double()),
    "table too short": put("running.table", lambda table: table[1:]),
    "table of another plan": put("running.table", lambda table: table.roll(1)),
    "table of nothing": put("running.table", None),
    "table below 0": put("running.table", lambda table: -table),
    "indices in 32 bits": put("running.indices", lambda indices: indices.int()),
    "indices as a list": put("running.indices", lambda indices: indices.tolist()),
    "an index too large": put("running.indices", lambda indices: indices + 22),
    "an index below 0": put("running.indices", lambda indices: indices - 22),
    "an index twice": put("running.indices", lambda indices: torch.cat([indices[:-1], indices[:1]])),
    "no indices": put("running.indices", lambda indices: indices[:0]),
    "indices of two dimensions": put("running.indices", lambda indices: indices[None]),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_a_state_that_cannot_be_loaded_changes_nothing(spoil: Callable[[dict[str, Any]], Any]) -> None:
    state = spoil(in_an_epoch().data.state_dict())
    here = Training("ours")
    for _ in here.batches():
        if len(here.log) == 10:
            break
    before = copy.deepcopy(here.data.state_dict())
    with pytest.raises(infobatch.StateError, match=r"expected .*; got .*\. .*Nothing was loaded\.$"):
        here.data.load_state_dict(state)
    assert equal(here.data.state_dict(), before)


def test_a_whole_state_is_loaded() -> None:
    """The spoilt ones above must differ from this one in nothing but what spoils them."""
    state = in_an_epoch().data.state_dict()
    assert state["running"]["table"] is not None
    here = Training("ours")
    here.data.load_state_dict(state)
    assert equal(here.data.state_dict(), state)


def test_the_promise_of_epochs_is_the_new_runs() -> None:
    """A run may be prolonged; the seed comes with the state."""
    state = in_an_epoch().data.state_dict()
    data = TensorDataset(torch.zeros(22))
    longer = infobatch.InfoBatch(data, 50, seed=9)
    longer.load_state_dict(state)
    assert (longer.num_epochs, longer.seed) == (50, 0)


def test_another_way_to_compensate_is_refused() -> None:
    state = in_an_epoch().data.state_dict()
    other = infobatch.InfoBatch(TensorDataset(torch.zeros(22)), 50, compensate="loss")
    with pytest.raises(infobatch.StateError, match=r"compensate loss.*compensate none"):
        other.load_state_dict(state)


def test_a_loaders_state_is_where_training_is_and_wants_the_datas_loaded_first() -> None:
    """For frameworks that save their loaders; the position itself lies in the data's state."""

    def fresh() -> tuple[infobatch.InfoBatch, infobatch.DataLoader]:
        data = infobatch.InfoBatch(TensorDataset(torch.arange(22)), 5)
        return data, infobatch.DataLoader(data, batch_size=4)

    data, loader = fresh()
    for step, (x,) in enumerate(loader):
        data.update(x.float())
        if step == 2:
            inside = loader.state_dict(), data.state_dict()
    between = loader.state_dict(), data.state_dict()
    assert [state for state, _ in (inside, between)] == [{"epoch": 0, "done": 12}, {"epoch": 1, "done": 0}]
    for state, whole in (inside, between):
        data, loader = fresh()
        with pytest.raises(infobatch.StateError, match=r"train_data\.state_dict"):
            loader.load_state_dict(state)
        data.load_state_dict(whole)
        loader.load_state_dict(state)


@pytest.mark.parametrize("state", [{}, None, {"epoch": "1", "done": 0}, [1, 2]], ids=repr)
def test_a_place_that_is_none_is_refused(state: Any) -> None:
    train = infobatch.InfoBatch(TensorDataset(torch.arange(8.0)), 4)
    for one in (train.sampler, infobatch.DataLoader(train, batch_size=4)):
        with pytest.raises(infobatch.StateError, match="the position of training"):
            one.load_state_dict(state)


@pytest.mark.parametrize("make", [methods.rcap, lambda labels: variations.class_floor(methods.infobatch(), labels)])
def test_other_labels_are_another_method(make: Callable[[torch.Tensor], methods.Method]) -> None:
    """Their settings alone would let one run go on with another's classes."""
    labels, data = torch.arange(12) % 3, TensorDataset(torch.arange(12.0))
    state = infobatch.Pruned(data, make(labels), 8).state_dict()
    infobatch.Pruned(data, make(labels.clone()), 8).load_state_dict(state)
    with pytest.raises(infobatch.StateError, match="with labels"):
        infobatch.Pruned(data, make(labels.roll(1)), 8).load_state_dict(state)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1, "persistent_workers": True}], ids=["none", "persistent"])
def test_dropout_goes_on_where_it_was(workers: dict[str, Any]) -> None:
    """A pass draws a number from torch's generator for its workers, and a resumed epoch is one pass more."""
    data = TensorDataset(torch.linspace(0, 1, 40))

    def train(state: dict[str, Any] | None, stop: int | None) -> tuple[list[Tensor], dict[str, Any]]:
        torch.manual_seed(1)
        run = infobatch.InfoBatch(data, 8)
        if state is not None:
            run.load_state_dict(state["data"])
            torch.set_rng_state(state["random"])
        drawn = []
        loader = infobatch.DataLoader(run, batch_size=8, **workers)
        for _ in range(run.epoch, 8):
            for (x,) in loader:
                run.update(x)
                drawn.append(torch.rand(3))
                if len(drawn) == stop:
                    return drawn, {"data": run.state_dict(), "random": torch.get_rng_state()}
        return drawn, {}

    whole, _ = train(None, None)
    for stop in (1, 5, 7, 11):
        first, state = train(None, stop)
        rest, _ = train(state, None)
        assert torch.equal(torch.stack(first + rest), torch.stack(whole))


def test_a_whole_checkpoint_is_named_by_its_keys() -> None:
    """The state of the data is one entry of what people save."""
    here = Training("ours")
    with pytest.raises(infobatch.StateError, match="'data'"):
        here.data.load_state_dict({"model": here.model.state_dict(), "data": here.data.state_dict()})


if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="with num_epochs=")  # short as they are
    go_through(Path(sys.argv[1]))
