"""What importing the package does, and which module may know which."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import infobatch

PACKAGE = Path(infobatch.__file__).parent
sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import layers  # noqa: E402

CORE = {entry for layer in layers.LAYERS[: layers.core_ends()] for entry in layer}

OUTSIDE = ("lab", "report", "cli", "integrations", "selection", "testing")

IMPORT = """
import json, random, sys, warnings
import torch
came = set(sys.modules)
import torch.utils.data, torch.optim.lr_scheduler
numpys = sys.modules.get("numpy.random")  # where torch did not bring it, whoever draws from it brings it, and is told

def state():
    return torch.get_rng_state().tolist(), random.getstate(), numpys and numpys.get_state()[1].tolist()

def attributes():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.startswith(("torch.utils.data", "torch.optim", "torch.nn.modules.loss")) or name == "torch":
            for key, value in list(vars(module).items()):
                found[name, key] = id(value)
                if isinstance(value, type):
                    found |= {(name, key, inner): id(thing) for inner, thing in list(vars(value).items())}
    return found

before, filters, drawn = attributes(), list(warnings.filters), state()
import infobatch
drawn_after, after = state(), attributes()
print(json.dumps({
    "came": sorted(set(sys.modules) - came),
    "same random state": drawn_after == drawn,
    "changed": [key for key, value in before.items() if key[-1] != "__warningregistry__" and after.get(key) != value],
    "attributes": len(before),
    "same filters": list(warnings.filters) == filters,
}))
"""


@pytest.fixture(scope="module")
def imported() -> dict[str, Any]:
    """What an import does in a new process, in which there is torch and nothing else."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", IMPORT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_imports_go_one_way() -> None:
    assert layers.violations() == []


def test_only_one_module_talks_to_ranks() -> None:
    for module, path in layers.modules().items():
        if layers.entry_of(module) in CORE and module != "ranks/exchange":
            imported = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import)]
            assert not any(alias.name == "torch.distributed" for node in imported for alias in node.names), module


def test_nothing_imports_integrations() -> None:
    for path in PACKAGE.rglob("*.py"):
        if "integrations" in path.relative_to(PACKAGE).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
                assert "integrations" not in ".".join(names).split("."), path


def test_reference_needs_only_the_standard_library() -> None:
    assert list(layers.imports_of("reference")) == []
    tree = ast.parse((PACKAGE / "reference.py").read_text())
    names = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {name.split(".")[0] for name in names} <= set(sys.stdlib_module_names)


def test_import_brings_torch_and_nothing_else(imported: dict[str, Any]) -> None:
    came = {name.split(".")[0] for name in imported["came"]}
    assert came - {"infobatch", "torch"} <= set(sys.stdlib_module_names)
    assert "infobatch" in came


def test_import_does_not_bring_the_lab(imported: dict[str, Any]) -> None:
    came = {name.removeprefix("infobatch.").replace(".", "/") for name in imported["came"] if "infobatch." in name}
    assert "dataset" in came
    assert not {name for name in came if name.split("/")[0] in OUTSIDE}
    assert "reference" not in came


def test_import_leaves_global_random_state_alone(imported: dict[str, Any]) -> None:
    assert imported["same random state"]


def test_import_does_not_patch_torch(imported: dict[str, Any]) -> None:
    """Every attribute of the modules and classes we touch is the object it was."""
    assert imported["attributes"] > 1000
    assert imported["changed"] == []
    assert imported["same filters"]


def test_public_names_are_there() -> None:
    assert sorted(infobatch.__all__) == infobatch.__all__
    for name in infobatch.__all__:
        assert hasattr(infobatch, name)


def test_dir_shows_the_public_names_only() -> None:
    assert set(dir(infobatch)) == {*infobatch.__all__, "__version__", "adapters", "selection", "testing"}


@pytest.mark.parametrize(
    ("name", "public"),
    [
        ("accelerate", {"Loader", "Scheduler", "prepare"}),
        ("dcp", {"Sharded"}),
        ("lightning", {"Pruning"}),
        ("transformers", {"PrunedTrainer"}),
        ("transformers_loss", set()),
    ],
)
def test_dir_of_an_integration_shows_what_users_need(name: str, public: set[str]) -> None:
    if name in ("accelerate", "lightning", "transformers"):
        pytest.importorskip(name)
    module = importlib.import_module(f"infobatch.integrations.{name}")
    assert set(dir(module)) == public == set(module.__all__)
