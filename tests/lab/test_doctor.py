"""The doctor, with real loaders: healthy ones are called so, and each illness is named with its remedy."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import random
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import infobatch
from infobatch.errors import InputError
from infobatch.lab.doctor import Check, Diagnosis, examine
from infobatch.lab.doctor.findings import BY_COLLATE
from infobatch.lab.doctor.tracing import Census, Log, Marked, count_rows, fingerprint, parts, rows
from infobatch.lab.doctor.trials import Account, Trial, account
from infobatch.walk import PlanWalk

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning"),  # torchdata's own
]

N = 60

PRELUDE = '''
import random
import torch, infobatch
from torch import nn
from torch.utils.data import *
from torch.utils.data import DataLoader as Torch

class Pictures(Dataset):
    """60 pictures of 3 x 4 x 4, in 10 classes."""
    def __init__(self, size=60):
        self.size, self.x = size, torch.randn(60, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    def __len__(self):
        return self.size
    def __getitem__(self, i):
        return self.x[i], i % 10

class Augmented(Pictures):
    def __getitem__(self, i):
        return self.x[i] + torch.randn(3, 4, 4), i % 10

class Dicts(Pictures):
    def __getitem__(self, i):
        return {"picture": self.x[i].numpy(), "name": f"sample {i}", "label": i % 10, "weight": 0.5}

class Boxes(Pictures):
    """As for detection: pictures of several sizes, each with a dict of its own."""
    def __getitem__(self, i):
        return self.x[i][:, : 2 + i % 3], {"boxes": torch.randn(1 + i % 4, 4), "label": torch.tensor(i)}

class Words(Pictures):
    def __getitem__(self, i):
        return {"ids": list(range(i, i + 1 + i % 7)), "label": i % 2}

class Many(Pictures):
    def __getitems__(self, indices):
        return [self[i] for i in indices]

class Columns(Pictures):
    """Fetches a batch at once, and not as a list."""
    def __getitems__(self, indices):
        return self.x[indices]

class Fewer(Pictures):
    def __getitems__(self, indices):
        return [self[i] for i in indices[1:]]

class Broken(Pictures):
    def __getitem__(self, i):
        if i == 33:
            raise OSError("no such picture")
        return super().__getitem__(i)

class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(9))

class Thing:
    __slots__ = ()

class Things(Pictures):
    def __getitem__(self, i):
        return Thing()

def one_thing(samples):
    return Thing()

def as_it_comes(batch):
    return batch

def lists(samples):
    return tuple(zip(*samples))

def padded(samples):
    ids = [torch.tensor(s["ids"]) for s in samples]
    lengths = torch.tensor([len(i) for i in ids])
    return nn.utils.rnn.pad_sequence(ids, batch_first=True), lengths, torch.tensor([s["label"] for s in samples])

def padded_in_front(samples):
    longest = max(len(s["ids"]) for s in samples)
    return torch.tensor([[-1] * (longest - len(s["ids"])) + s["ids"] for s in samples])

def longest_first(samples):
    return padded(sorted(samples, key=lambda s: -len(s["ids"])))

def scaled(samples):
    x, y = default_collate(samples)
    return (x - 0.5) / 0.25, y

def without_first(samples):
    return default_collate(samples[1:])

def doubled(samples):
    return default_collate([*samples, *samples])

def backwards(samples):
    return default_collate(samples[::-1])

def scaled_backwards(samples):
    return scaled(samples[::-1])

def mixed(samples):
    x, y = default_collate(samples)
    return 0.5 * x + 0.5 * x[torch.randperm(len(x))], y

class ReadsAhead:
    def __init__(self, loader, by=1):
        self.loader, self.by = loader, by
    def __iter__(self):
        waiting = []
        for batch in self.loader:
            waiting.append(batch)
            if len(waiting) > self.by:
                yield waiting.pop(0)
        yield from waiting

class InParts:
    def __init__(self, loader):
        self.loader = loader
    def __iter__(self):
        for x, y in self.loader:
            yield x[:3], y[:3]
            if len(x) > 3:
                yield x[3:], y[3:]

class Stops:
    def __init__(self, loader):
        self.loader = loader
    def __iter__(self):
        for number, batch in enumerate(self.loader):
            if number == 3:
                return
            yield batch

class Endless:
    def __init__(self, loader):
        self.loader = loader
    def __iter__(self):
        batch = next(iter(self.loader))
        while True:
            yield batch

class Sorted(Sampler):
    def __init__(self, sampler, batch_size=8):
        self.sampler, self.batch_size = sampler, batch_size
    def __iter__(self):
        order = sorted(self.sampler)
        for at in range(0, len(order), 8):
            yield order[at : at + 8]

class OnItsOwn(Sampler):
    batch_size = 8
    def __iter__(self):
        for at in range(0, 60, 8):
            yield list(range(at, min(at + 8, 60)))

class Moves(Pictures):
    """Shuffles itself now and then."""
    fetched = 0
    def __getitem__(self, i):
        self.fetched += 1
        return super().__getitem__((i + self.fetched // 60) % 60)

def pruned(data=None):
    return infobatch.InfoBatch(data or Pictures(), 8)

def stock(data=None, **given):
    train_data = pruned(data)
    return Torch(train_data, **{"batch_size": 8, "sampler": train_data.sampler, **given})

def ours(data=None, **given):
    return infobatch.DataLoader(pruned(data), **{"batch_size": 8, **given})
'''

numbers = itertools.count()


@pytest.fixture
def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Writes a module in the current folder in which ``make()`` returns what the code says; its target."""
    monkeypatch.chdir(tmp_path)
    names = []

    def write(code: str) -> str:
        names.append(f"patient_{next(numbers)}")
        body = code if "\n" in code or code.startswith("return") else f"return {code}"
        Path(f"{names[-1]}.py").write_text(f"{PRELUDE}\ndef make():\n{textwrap.indent(body, '    ')}\n")
        return f"{names[-1]}:make"

    yield write
    for name in names:
        sys.modules.pop(name, None)


def named(found: Diagnosis, name: str) -> Check:
    return next(check for check in found.checks if check.name == name)


def not_ok(found: Diagnosis) -> dict[str, str]:
    return {check.name: check.status for check in found.checks if check.status != "ok"}


# ---- healthy ---------------------------------------------------------------------------------------------------

HEALTHY = [
    "stock()",
    "ours()",
    "stock(num_workers=2)",
    "ours(num_workers=2, persistent_workers=True)",
    "stock(drop_last=True)",
    "stock(Augmented(), num_workers=2)",
    "stock(Dicts())",
    "ours(Boxes(), collate_fn=lists)",
    "stock(Boxes(), collate_fn=lists, batch_size=2)",
    "stock(Words(), collate_fn=padded)",
    "ours(Words(), collate_fn=padded_in_front)",
    "stock(Many())",
    "stock(Columns(), collate_fn=as_it_comes)",
    "stock(batch_size=None)",
    "ours(batch_size=None)",
    "stock(batch_size=1)",
    "stock(batch_size=100)",
    "stock(Subset(Pictures(), range(5, 55)))",
    "stock(TensorDataset(torch.randn(60, 2, dtype=torch.bfloat16)))",
    "InParts(stock())",
    "InParts(ours())",
    "ReadsAhead(ours(lookahead=1))",
    "ours(lookahead=2)",
    "d = pruned()\nreturn infobatch.DataLoader(d, batch_sampler=Sorted(d.sampler))",
    "d = pruned()\nreturn Torch(d, batch_sampler=BatchSampler(d.sampler, 8, False))",
    "d = pruned()\nreturn d, Torch(d.dataset, batch_size=8, sampler=d.sampler)",
    "from torchdata.stateful_dataloader import StatefulDataLoader\n"
    "d = pruned()\nreturn StatefulDataLoader(d, batch_size=8, sampler=d.sampler)",
]


@pytest.mark.parametrize("code", HEALTHY)
def test_a_healthy_loader_is_called_so(code: str, patient: Callable[..., str]) -> None:
    found = examine(patient(code))
    assert not_ok(found) == {}
    assert found.ok
    assert found.verdict == "Every loss reaches its sample."
    assert found.epochs == 2
    right, came = re.match(r"(\d+) of (\d+) reached their samples$", named(found, "losses").seen).groups()
    assert right == came
    assert int(came) > found.samples, "a full epoch and a pruned one"


def test_workers_by_spawn(patient: Callable[..., str]) -> None:
    found = examine(patient('ours(num_workers=1, persistent_workers=True, multiprocessing_context="spawn")'))
    assert not_ok(found) == {}
    assert "by spawn" in named(found, "workers").seen


def test_rows_that_cannot_be_recognised_are_followed_by_their_places(patient: Callable[..., str]) -> None:
    found = examine(patient("stock(collate_fn=scaled)"))
    assert not_ok(found) == {}
    assert "counted batch by batch" in named(found, "losses").seen


# ---- ill -------------------------------------------------------------------------------------------------------

BY_INDEX = r"update\(loss, indices\)"
OURS = r"loader = infobatch\.DataLoader\(train_data, batch_size=8\)"
ILL = {
    "shuffle=True": ("stock(sampler=None, shuffle=True)", "sampler", "shuffle=True", OURS),
    "no sampler": ("stock(sampler=None)", "sampler", "no sampler", OURS),
    "a sampler of its own": (
        "stock(sampler=WeightedRandomSampler([1.0] * 60, 60))", "sampler", "WeightedRandomSampler", OURS,
    ),
    "DistributedSampler": (
        "d = pruned()\nreturn Torch(d, batch_size=8, sampler=DistributedSampler(d, 2, 0))",
        "sampler", "DistributedSampler", OURS,
    ),
    "reads ahead": ("ReadsAhead(stock())", "reading ahead", "fetched 1 more", r"batch_size=8, lookahead=1\)"),
    "reads three ahead": (
        "ReadsAhead(stock(num_workers=2), by=3)", "reading ahead", "fetched 3 more",
        r"batch_size=8, num_workers=2, lookahead=3\)",
    ),
    "reads ahead of ours": ("ReadsAhead(ours())", "reading ahead", "fetched 1 more", r"lookahead=1\)"),
    "reads ahead, shuffled": (
        "ReadsAhead(stock(sampler=None, shuffle=True))", "reading ahead", "fetched 1 more", r"lookahead=1\)",
    ),
    "collate drops": ("stock(collate_fn=without_first)", "batch size", "a batch of 7", "not in collate_fn"),
    "collate drops, ours": ("ours(collate_fn=without_first)", "batch size", "batch of 7", "not in collate_fn"),
    "collate doubles": ("stock(collate_fn=doubled)", "batch size", "batch of 16 rows", r"view\(-1, 8\).mean\(0\)"),
    "collate reorders": ("stock(collate_fn=backwards)", "order inside a batch", "same batch", BY_INDEX),
    "collate reorders, ours": ("ours(collate_fn=backwards)", "order inside a batch", "same batch", "__getitem__"),
    "collate sorts": (
        "stock(Words(), collate_fn=longest_first)", "order inside a batch", "same batch", BY_INDEX,
    ),
    "collate reorders what cannot be recognised": (
        "stock(collate_fn=scaled_backwards)", "order inside a batch", "comes out in another", BY_INDEX,
    ),
    "a batch sampler around ours": (
        "d = pruned()\nreturn Torch(d, batch_sampler=Sorted(d.sampler))", "batch sampler", "Sorted around",
        r"infobatch.DataLoader\(train_data, batch_sampler=Sorted\(train_data.sampler",
    ),
    "a batch sampler on its own": (
        "Torch(pruned(), batch_sampler=OnItsOwn())", "batch sampler", "draws on its own", "batch_sampler=OnItsOwn",
    ),
    "in_order=False": ("stock(num_workers=2, in_order=False)", "workers", "in_order=False", r"num_workers=2\)"),
    "the loader reads what is inside": (
        "d = pruned()\nreturn d, Torch(d.dataset, batch_size=8, shuffle=True)", "wrapping", "and not train_data",
        OURS,
    ),
    "wrapped again": (
        "Torch(Subset(pruned(), range(50)), batch_size=8, shuffle=True)", "wrapping", "inside a Subset", "InfoBatch",
    ),
    "a data set that moves": ("stock(Moves())", "positions", "in another place", "same sample throughout"),
    "a data set that grew": (
        "d = pruned()\nd.dataset.size = 50\nreturn Torch(d, sampler=d.sampler)", "data set", "was 60", "complete",
    ),
    "__len__ too large": ("stock(Pictures(80))", "passes", "IndexError", r"dataset\[79\] is not there"),
    "no end": ("Endless(stock())", "passes", "no end", "__iter__"),
    "__getitems__ loses one": ("stock(Fewer())", "batch size", "returned 7 samples for 8 indices", "each index"),
}  # fmt: skip


@pytest.mark.parametrize("name", ILL)
def test_an_illness_is_named_with_its_remedy(name: str, patient: Callable[..., str]) -> None:
    code, check, seen, mend = ILL[name]
    found = examine(patient(code))
    assert not found.ok
    assert check in found.verdict
    answer = named(found, check)
    assert answer.status == "problem"
    assert re.search(seen, answer.seen), answer.seen
    assert re.search(mend, answer.mend), answer.mend
    assert answer.means


@pytest.mark.parametrize(
    "name",
    ["shuffle=True", "DistributedSampler", "reads ahead", "reads three ahead", "reads ahead, shuffled",
     "a batch sampler around ours", "in_order=False"],
)  # fmt: skip
def test_the_remedy_was_tried(name: str, patient: Callable[..., str]) -> None:
    found = examine(patient(ILL[name][0]))
    answer = named(found, "remedy")
    assert answer.status == "ok"
    right, came = re.search(r"(\d+) of (\d+) losses reached", answer.seen).groups()
    assert right == came != "0"


def test_the_remedy_as_printed_heals(patient: Callable[..., str]) -> None:
    """The line of code it gives, put in the place of the loader."""
    broken = examine(patient("ReadsAhead(stock(num_workers=2))"))
    line = named(broken, "reading ahead").mend
    healed = examine(patient(f"train_data = pruned()\n{line}\nreturn ReadsAhead(loader)"))
    assert not_ok(healed) == {}


def test_every_wrong_loss_is_counted(patient: Callable[..., str]) -> None:
    """Turned round, all change places but the one in the middle of an odd batch: the last of a pruned epoch."""
    found = examine(patient("stock(collate_fn=backwards)"))
    wrong, came = map(int, re.search(r"(\d+) of (\d+) losses became", named(found, "losses").seen).groups())
    kept = came - N
    assert 0 < kept < N
    assert wrong == came - (kept % 8) % 2


def test_the_truth_does_not_come_from_what_is_checked(
    patient: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attribution machinery that writes each loss down one place too far is found out."""
    note = PlanWalk.note
    monkeypatch.setattr(PlanWalk, "note", lambda self, where, scores: note(self, where, scores.roll(1)))
    found = examine(patient("stock()"))
    assert named(found, "losses").status == "problem"
    assert "became the score of another sample" in named(found, "losses").seen


# ---- neither healthy nor ill -----------------------------------------------------------------------------------


def test_a_plain_data_set_gets_the_three_lines_and_a_trial(patient: Callable[..., str]) -> None:
    found = examine(patient("Torch(Pictures(), batch_size=8, shuffle=True, num_workers=2, drop_last=True)"))
    assert not_ok(found) == {"wrapping": "warning"}
    assert "Nothing is pruned yet" in found.verdict
    lines = named(found, "wrapping").mend
    assert "infobatch.InfoBatch(train_data, num_epochs)" in lines
    assert "infobatch.DataLoader(train_data, batch_size=8, num_workers=2, drop_last=True)" in lines
    assert "train_data.update" in lines
    assert "reached their samples" in named(found, "losses").seen


def test_a_plain_data_set_is_not_spared_its_other_illnesses(patient: Callable[..., str]) -> None:
    found = examine(patient("ReadsAhead(Torch(Pictures(), batch_size=8, shuffle=True))"))
    assert named(found, "reading ahead").mend.endswith("lookahead=1)")
    found = examine(patient("Torch(Pictures(), batch_size=8, collate_fn=backwards)"))
    assert named(found, "order inside a batch").status == "problem"
    found = examine(patient("Torch(Pictures(), batch_size=8, sampler=DistributedSampler(Pictures(), 2, 0))"))
    assert named(found, "sampler").status == "warning"


def test_a_stream_cannot_be_pruned(patient: Callable[..., str]) -> None:
    found = examine(patient("Torch(Stream())"))
    assert not found.ok
    assert [check.name for check in found.checks] == ["data set"]
    assert "list(stream)" in found.checks[0].mend


WARNINGS = {
    "persistent": ("stock(num_workers=1, persistent_workers=True)", "workers", "persistent"),
    "cut short": ("Stops(stock())", "every sample", "24 of 60"),
    "drop_last": ("stock(drop_last=True, batch_size=50)", "drop_last", "up to 49"),
    "copies": ("stock(ConcatDataset([Pictures(30), Pictures(30)]))", "copies", "30 of 60"),
    "mixup": ("stock(collate_fn=mixed)", "order inside a batch", "depends on the other samples"),
}


@pytest.mark.parametrize("name", WARNINGS)
def test_what_deserves_a_look_is_a_warning(name: str, patient: Callable[..., str]) -> None:
    code, check, seen = WARNINGS[name]
    found = examine(patient(code))
    assert found.ok
    assert named(found, check).status == "warning"
    assert seen in named(found, check).seen


def test_augmentation_is_noted_and_fine(patient: Callable[..., str]) -> None:
    assert "augmentation" in named(examine(patient("stock(Augmented())")), "positions").seen
    assert "the same both times" in named(examine(patient("stock()")), "positions").seen


def test_what_cannot_be_seen_is_not_called_fine(patient: Callable[..., str]) -> None:
    generator = examine(patient("loader = stock()\nreturn loader.dataset, (batch for batch in loader)"))
    assert named(generator, "passes").status == "not checkable"
    hidden = "loader = stock()\nclass Hidden:\n    def __iter__(self):\n        return iter(loader)\n"
    closure = examine(patient(hidden + "return loader.dataset, Hidden()"))
    assert named(closure, "passes").status == "not checkable"
    nothing = examine(patient("stock(Things(), collate_fn=one_thing)"))
    assert named(nothing, "batch size").status == "not checkable"
    assert named(nothing, "losses").status == "not checkable"
    for found in (generator, closure, nothing):
        assert found.ok
        assert "could not be made" in found.verdict


# ---- the person's own things -----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_of_their_own_are_reported_as_such(workers: int, patient: Callable[..., str]) -> None:
    target = patient(f"stock(Broken(), num_workers={workers})")
    found = examine(target)
    answer = named(found, "passes")
    assert answer.status == "problem"
    assert "your own code" in answer.means
    assert answer.seen.splitlines()[-1] == "OSError: no such picture"
    assert f"{target.split(':')[0]}.py" in answer.seen
    assert "tracing" not in answer.seen


def test_errors_at_import_are_reported_as_such(patient: Callable[..., str]) -> None:
    found = examine(patient("raise KeyError('no such key')\nreturn 1"))
    assert [check.name for check in found.checks] == ["import"]
    assert "no such key" in found.checks[0].seen
    missing = examine(patient("import not_installed\nreturn 1"))
    assert "not_installed" in missing.checks[0].seen


def test_a_script_that_ends_the_program_ends_nothing_here(
    patient: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = examine(patient("import sys\nsys.exit(0)"))
    assert not found.ok
    assert "SystemExit: 0" in found.checks[0].seen
    assert "__main__" in found.checks[0].mend
    quits = (
        "class Quits(Pictures):\n    def __getitem__(self, i):\n        raise SystemExit(3)\nreturn stock(Quits())"
    )
    assert named(examine(patient(quits)), "passes").seen.splitlines()[-1] == "SystemExit: 3"
    monkeypatch.setattr(sys, "argv", ["infobatch", "doctor", "train:loader"])
    reads = "import argparse\nargparse.ArgumentParser().parse_args()\nreturn stock()"
    assert examine(patient(reads)).ok
    assert sys.argv == ["infobatch", "doctor", "train:loader"]


def test_nothing_of_theirs_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of an epoch, with workers that live: it goes on afterwards as if nobody had looked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"patient_{next(numbers)}"
    Path(f"{name}.py").write_text(
        f"{PRELUDE}\nloader = stock(num_workers=1, persistent_workers=True, generator=torch.Generator())\n"
        "draws = Torch(Pictures(), batch_size=8, shuffle=True, generator=torch.Generator(), collate_fn=scaled)\n"
    )
    module = __import__(name)
    loader, data = module.loader, module.loader.dataset
    oracle = {}

    def step(batch: Any) -> None:
        x, _ = batch
        indices = [int((data.dataset.x == one).flatten(1).all(1).nonzero()) for one in x]
        oracle.update({index: float(index) for index in indices})
        data.update(torch.tensor(indices).float())

    def state() -> list[Any]:
        generators = [module.draws.generator.get_state(), loader.generator.get_state(), torch.get_rng_state()]
        others = [random.getstate(), np.random.get_state()[1].tolist()]  # type: ignore[index]
        return [dict(vars(loader)), data.progress, data.history, list(sys.path), *others, *generators]

    batches = iter(loader)
    for _ in range(3):
        step(next(batches))
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(123)
    before = state()
    assert not_ok(examine(f"{name}:loader")) == {"workers": "warning"}
    assert examine(f"{name}:draws").ok
    after = state()
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    for batch in batches:
        step(batch)
    assert data.epoch == 1
    assert data.scores.tolist() == [float(index) for index in range(N)] == [oracle[index] for index in range(N)]
    loader._iterator = None
    sys.modules.pop(name)


def test_no_worker_is_left(patient: Callable[..., str]) -> None:
    before = set(multiprocessing.active_children())
    for code in ("ours(num_workers=2, persistent_workers=True)", "stock(Pictures(80), num_workers=2)",
                 "ReadsAhead(stock(num_workers=2))", "Stops(stock(num_workers=2))"):  # fmt: skip
        examine(patient(code))
        assert set(multiprocessing.active_children()) == before, code


# ---- arguments -------------------------------------------------------------------------------------------------


def test_a_limit_looks_at_the_first_samples_alone(patient: Callable[..., str]) -> None:
    found = examine(patient("stock(Pictures(80), num_workers=1)"), limit=40)
    assert not_ok(found) == {}
    assert found.samples == 40
    assert "40 of 40" in named(found, "every sample").seen


def test_epochs(patient: Callable[..., str]) -> None:
    target = patient("ours()")
    assert examine(target, epochs=1).epochs == 1
    assert examine(target, epochs=11).epochs == 11, "more than were promised to training"


def test_the_result_is_plain(patient: Callable[..., str]) -> None:
    found = examine(patient("stock()"))
    again = json.loads(json.dumps(found.plain()))
    assert again["ok"] is True
    assert {"name", "status", "seen", "means", "mend"} == set(again["checks"][0])


def test_bad_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"patient_{next(numbers)}"
    Path(f"{name}.py").write_text("loader = 3\ndata = [1, 2]\ntext = 'loader'\n")
    for target, expected in [
        (name, "MODULE:NAME"),
        (f"{name}:", "MODULE:NAME"),
        (":loader", "MODULE:NAME"),
        (f"{name[:-1]}_:loader", f"Did you mean .*{name}"),
        (f"{name}:loadr", "Did you mean loader"),
        (f"{name}:loader", "got int"),
        (f"{name}:data", "got int|got list"),
        (f"{name}:text", "got str"),
    ]:
        with pytest.raises(InputError, match=expected):
            examine(target)
    for wrong in ({"epochs": 0}, {"limit": 0}, {"epochs": True}):
        with pytest.raises(InputError, match="at least 1"):
            examine(f"{name}:loader", **wrong)
    sys.modules.pop(name)


# ---- fingerprints ----------------------------------------------------------------------------------------------

shapes = st.lists(st.integers(1, 5), min_size=0, max_size=3)


@settings(deadline=None, max_examples=50)
@given(
    shapes, st.sampled_from([torch.float16, torch.bfloat16, torch.uint8, torch.int64, torch.bool]), st.integers(0, 99)
)
def test_a_fingerprint_is_of_the_numbers_and_not_of_their_type(
    shape: list[int], dtype: torch.dtype, seed: int
) -> None:
    thing = torch.randint(0, 9, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    ((_, narrow),), ((_, wide),) = list(parts(thing)), list(parts(thing.double()))
    assert fingerprint(narrow) == fingerprint(wide)
    ((_, array),) = list(parts(thing.double().numpy()))
    assert fingerprint(array) == fingerprint(narrow)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=6),
    st.booleans(),
    st.integers(-1, 3),
)
def test_padding_is_seen_through(samples: list[list[int]], in_front: bool, pad: int) -> None:
    """What a padded row is recognised as could be padded to it."""
    census = Census(lengths=sorted({len(sample) for sample in samples}))
    tensors = [torch.tensor(sample) for sample in samples]
    for number, sample in enumerate(tensors):
        census.owner.setdefault(fingerprint(sample), number)
    longest = 1 + max(map(len, samples))
    for sample in samples:
        more = [pad] * (longest - len(sample))
        row = torch.tensor(more + sample if in_front else sample + more)
        key = census.recognise(row)
        assert key, "the sample itself is one that it could be"
        kept = samples[census.owner[key]]
        rest = longest - len(kept)
        could = row.tolist() in (kept + [row[-1].item()] * rest, [row[0].item()] * rest + kept)
        assert could


def test_large_parts_are_looked_at_in_places() -> None:
    large = torch.zeros(1_000_000)
    other = large.clone()
    other[::1000] = 1
    assert fingerprint(large) != fingerprint(other)
    assert fingerprint(torch.zeros(3)) != fingerprint(torch.zeros(4))
    assert fingerprint(torch.zeros(999_999)) != fingerprint(large)


def test_rows_of_batches() -> None:
    x, y = torch.randn(4, 3, 2), torch.arange(4)
    assert count_rows((x, y), [4]) == 4
    assert count_rows({"x": x, "n": torch.tensor(1)}, [8, 4]) == 4
    assert count_rows([[x[0], x[1, :1]], ["a", "b"]], [2]) == 2
    assert count_rows((x[:3], y[:3]), [4, 2]) == 3
    assert count_rows(object(), [4]) is None
    found = dict(rows({"x": x, "names": ["a", "b", "c", "d"], "all": torch.tensor(7)}, 4))
    assert set(found) == {("x",), ("names", "*")}
    assert torch.equal(torch.stack(found[("x",)]), x.reshape(4, 6))
    assert found[("names", "*")] == [b"a", b"b", b"c", b"d"]


def test_notes_of_several_processes_are_read_once(tmp_path: Path) -> None:
    data = Marked([torch.tensor([float(i), 1.0]) for i in range(10)], tmp_path, 10)
    for i in range(3):
        data[i]
    log, census = Log(tmp_path), Census()
    log.read(census)
    (tmp_path / "other").write_bytes((next(tmp_path.iterdir())).read_bytes()[:-8])
    data.__getitems__([3, 4])
    log.read(census)
    assert census.fetched == {0: 2, 1: 2, 2: 1, 3: 1, 4: 1}, "and not what is half written"
    assert sorted(census.sizes) == [(1, 1)] * 5 + [(2, 2)]
    assert census.recognise(torch.tensor([4.0, 1.0])) == census.keys[4][0]


def test_what_was_fetched_before_a_pass_is_not_of_it(tmp_path: Path) -> None:
    marked = Marked([torch.tensor([float(i), 1.0]) for i in range(10)], tmp_path, 10)
    data = infobatch.InfoBatch(marked, 8)
    marked.__getitems__([3, 4])
    (walk,) = Trial(infobatch.DataLoader(data, batch_size=4), data, Log(tmp_path)).run(1).walks
    assert walk.census.fetched == dict.fromkeys(range(10), 1)
    assert sorted(walk.went.values()) == list(range(10))
    assert account(walk) == Account(right=10)


def test_a_loader_of_ones_own_class(patient: Callable[..., str]) -> None:
    code = "class Mine(Torch):\n    pass\nd = pruned()\nreturn Mine(d, batch_size=8, sampler=d.sampler)"
    found = examine(patient(code))
    assert found.loader == "Mine over InfoBatch of Pictures"
    assert not_ok(found) == {}


def test_a_warning_shows_in_the_verdict() -> None:
    fine, odd = Check("passes", "ok", "two"), Check("copies", "warning", "half of them")
    assert Diagnosis("a:b", "a loader", 9, 1, (fine,)).verdict == "Every loss reaches its sample."
    found = Diagnosis("a:b", "a loader", 9, 1, (fine, odd))
    assert found.ok
    assert found.verdict == "Every loss reaches its sample. With warnings: see copies."


def test_the_remedy_for_a_sorting_collate_carries_the_index() -> None:
    """The lines it shows, followed to the letter."""
    samples = [(torch.tensor([3.0]), 0), (torch.tensor([1.0]), 1), (torch.tensor([2.0]), 2)]
    (line,) = (line for line in BY_COLLATE.splitlines() if line.startswith("*columns"))
    names: dict[str, Any] = {"samples": samples}
    exec(line.replace("key=...", "key=lambda sample: sample[0].item()"), names)
    assert names["indices"] == (1, 2, 0)
    assert "torch.tensor(indices)" in BY_COLLATE
