"""What importing the package does, and which module may know which."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import infobatch

PACKAGE = Path(infobatch.__file__).parent

# Each line may import from the lines above it, and from nothing below or beside it.
LAYERS = [
    ["errors", "reference", "order", "cards", "asking"],
    ["checks"],
    ["plan", "schedules", "distributed", "memory", "values", "rates"],
    ["scorebook", "telemetry", "growing", "checkpoint", "choices"],
    ["policies", "walk"],
    ["ledger", "method", "state_checks"],
    ["sampler", "methods", "variations", "views"],
    ["sharding", "looking"],
    ["course", "cautions"],
    ["state"],
    ["dataset"],
    ["loader", "pacing", "paper"],
    ["__init__"],
]

FLAT = sorted(path.stem for path in PACKAGE.glob("*.py"))


def imports(path: Path) -> tuple[set[str], set[str]]:
    """What a module imports: of the package (first names), and from outside."""
    inside, outside = set(), set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            outside |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0:
                outside |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif node.module is None:
                inside |= {alias.name for alias in node.names}
            else:
                inside.add(node.module.split(".")[0])
    assert not any(name.split(".")[0] == "infobatch" for name in outside), "inside the package, import relatively"
    return inside, outside


GRAPH = {name: imports(PACKAGE / f"{name}.py")[0] for name in FLAT}


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
    level = {name: height for height, layer in enumerate(LAYERS) for name in layer}
    placed = [name for name in FLAT if name in level]
    assert len(placed) >= 17
    for name in placed:
        for other in GRAPH[name]:
            assert other in level, f"{name} imports {other}, which has no place in the layers"
            assert level[other] < level[name], f"{name} must not import {other}"


def test_every_core_module_has_its_place() -> None:
    """Whatever the public names reach must stand in the layers."""
    reached, todo = set(), ["__init__"]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += GRAPH[name]
    assert reached <= {name for layer in LAYERS for name in layer}


def test_no_cycle() -> None:
    done: set[str] = set()
    while len(done) < len(FLAT):
        ready = {name for name in FLAT if name not in done and (GRAPH[name] & set(FLAT)) <= done}
        assert ready, f"a cycle among {sorted(set(FLAT) - done)}"
        done |= ready


def test_only_distributed_talks_to_ranks() -> None:
    for name in FLAT:
        outside = imports(PACKAGE / f"{name}.py")[1]
        if name != "distributed":
            assert not any(module.startswith("torch.distributed") for module in outside), name


def test_nothing_imports_integrations() -> None:
    for path in PACKAGE.rglob("*.py"):
        if "integrations" in path.relative_to(PACKAGE).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
                assert "integrations" not in ".".join(names).split("."), path


def test_reference_needs_the_standard_library_alone() -> None:
    assert GRAPH["reference"] == set()
    outside = imports(PACKAGE / "reference.py")[1]
    assert {name.split(".")[0] for name in outside} <= set(sys.stdlib_module_names)


def test_import_brings_torch_and_nothing_else(imported: dict[str, Any]) -> None:
    came = {name.split(".")[0] for name in imported["came"]}
    assert came - {"infobatch", "torch"} <= set(sys.stdlib_module_names)
    assert "infobatch" in came


def test_import_does_not_bring_the_lab(imported: dict[str, Any]) -> None:
    came = {name.split(".")[1] for name in imported["came"] if name.startswith("infobatch.")}
    assert came <= {name for layer in LAYERS for name in layer} - {"reference"}


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
