"""The doctor leaves the user's objects unchanged, reports errors in their code, and checks its arguments."""

from __future__ import annotations

import json
import multiprocessing
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from patients import PRELUDE, N, named, not_ok, numbers

from infobatch.errors import InputError
from infobatch.lab.doctor import examine
from infobatch.lab.doctor.findings import YOURS
from infobatch.lab.tasks.catalogue import make_task

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning"),  # torchdata's own
]


# ---- the user's code and objects -------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_of_their_own_are_reported_as_such(workers: int, patient: Callable[..., str]) -> None:
    target = patient(f"stock(Broken(), num_workers={workers})")
    found = examine(target)
    answer = named(found, "passes")
    assert answer.status == "problem"
    assert answer.means == YOURS
    assert answer.seen.splitlines()[-1] == "OSError: no such picture"
    assert f"{target.split(':')[0]}.py" in answer.seen
    assert "tracing" not in answer.seen


def test_a_data_set_that_does_not_tell_its_length_is_reported(patient: Callable[..., str]) -> None:
    unsized = "class Unsized(Pictures):\n    def __len__(self):\n        raise NotImplementedError('nobody knows')"
    found = examine(patient(f"{unsized}\nreturn Torch(Unsized(), batch_size=8, sampler=range(60))"))
    assert [(check.name, check.status, check.means) for check in found.checks] == [("data set", "problem", YOURS)]
    assert "NotImplementedError: nobody knows" in found.checks[0].seen


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
    assert "__main__" in found.checks[0].fix
    quits = "class Quits(Pictures):\n    def __getitem__(self, i):\n        raise SystemExit(3)\nreturn stock(Quits())"
    assert named(examine(patient(quits)), "passes").seen.splitlines()[-1] == "SystemExit: 3"
    monkeypatch.setattr(sys, "argv", ["infobatch", "doctor", "train:loader"])
    reads = "import argparse\nargparse.ArgumentParser().parse_args()\nreturn stock()"
    assert examine(patient(reads)).ok
    assert sys.argv == ["infobatch", "doctor", "train:loader"]


def test_nothing_of_theirs_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In mid-epoch, with persistent workers: training continues as if nothing had been examined."""
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
    assert named(found, "workers").seen == "1 worker"


def test_epochs(patient: Callable[..., str]) -> None:
    target = patient("ours()")
    assert examine(target, epochs=1).epochs == 1
    assert examine(target, epochs=11).epochs == 11, "more than were promised to training"


def test_the_result_is_plain(patient: Callable[..., str]) -> None:
    found = examine(patient("stock()"))
    again = json.loads(json.dumps(found.plain()))
    assert again["ok"] is True
    assert {"name", "status", "seen", "means", "fix"} == set(again["checks"][0])


@pytest.mark.parametrize("name", ["trian", "packge.data", "package.dta", "package.data.more", "train.py", "my-data"])
def test_a_module_that_is_not_there_is_named_and_nobodys_fault(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doctor and tasks give the same message."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "package").mkdir()
    for file in ("train.py", "package/__init__.py", "package/data.py"):
        Path(file).touch()
    told = []
    for ask in (examine, lambda target: make_task(target, "")):
        with pytest.raises(InputError, match=rf"to import before the colon of '{name}:make'; got '{name}'") as caught:
            ask(f"{name}:make")
        told.append(str(caught.value))
        for known in ("train", "package", "package.data"):
            sys.modules.pop(known, None)
    assert told[0] == told[1]
    assert name != "trian" or "Did you mean train?" in told[0]


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
