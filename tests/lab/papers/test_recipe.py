"""Recipes: the files that are there, and how they are read."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import pytest
import torch
from made_recipes import SMALL, small

from infobatch.epoch.scores import ScoreTable
from infobatch.errors import InputError
from infobatch.lab.papers import recipe as recipes
from infobatch.lab.papers.recipe import load, runs
from infobatch.lab.tasks import catalogue, nets
from infobatch.lab.train import optimizers as optim
from infobatch.lab.train.method_text import parse_method, parse_static
from infobatch.lab.train.settings import Settings
from infobatch.methods import METHODS
from infobatch.methods.method import Moment

ROOT = Path(__file__).parents[3]
ALL = recipes.all_recipes()
BY_NAME = pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)


# ---- the files -------------------------------------------------------------------------------------------


def test_every_table_and_figure_is_there() -> None:
    wanted = [*(f"table{n}" for n in range(1, 13)), *(f"figure{n}" for n in range(3, 7))]
    early = [*(f"early_table{n}" for n in range(1, 7)), "early_figure4"]
    assert recipes.names() == wanted + early


@BY_NAME
def test_cells_can_run_or_say_what_they_wait_for(recipe: recipes.Recipe) -> None:
    assert recipe.claim.endswith(".")
    for cell in recipe.cells:
        ways = [cell.settings is not None, bool(cell.row), bool(cell.waits)]
        assert sum(ways) == 1, cell.name
        if cell.settings is not None:
            assert cell.settings.task in catalogue.TASKS
            assert cell.settings.optimizer in optim.OPTIMIZERS
            known = (*nets.NETS, "task", "transformers:upernet")
            assert cell.settings.model in known or cell.settings.model.startswith("timm:resnet")
            assert cell.unit


@BY_NAME
def test_what_is_waited_for_is_not_there(recipe: recipes.Recipe) -> None:
    """A method or task that has been built is to be filled in here."""
    for cell in recipe.cells:
        kind, _, name = cell.waits.partition(":")[0].partition(" ")
        assert not (kind == "method" and name in METHODS), f"{recipe.name}, {cell.name}: {name} is there"
        assert not (kind == "task" and name in catalogue.TASKS), f"{recipe.name}, {cell.name}: {name} is there"


@BY_NAME
def test_quick_versions_are_small_and_keep_the_method(recipe: recipes.Recipe) -> None:
    quick = runs(recipe, quick=True)
    seconds = 0.0
    for cell, settings in quick:
        segments = cell.settings is not None and cell.settings.task == "ade20k"
        assert settings.task == ("shapes" if segments else "digits")
        assert settings.model in (("fpn8",) if segments else ("conv", "mlp"))
        steps = settings.epochs * math.ceil((240 if segments else 1257) / settings.batch_size)
        seconds += steps * {"fpn8": 0.02, "conv": 0.008, "mlp": 0.002}[settings.model]
    assert seconds <= 60
    for cell in recipe.cells:
        assert (cell.quick is None) == (cell.settings is None)
        if cell.quick is not None and cell.settings is not None:
            assert cell.quick.method == cell.settings.method
            assert cell.quick.optimizer == cell.settings.optimizer
            if parse_static(cell.quick.method) is None:
                method = parse_method(cell.quick.method)
                method.check_epochs(cell.quick.epochs, method.schedule)
    assert ("digits for" in recipe.stand_in) == bool(quick)


@BY_NAME
def test_every_cell_gets_the_same_seeds(recipe: recipes.Recipe) -> None:
    seeds: dict[Settings, list[int]] = {}
    for _, settings in runs(recipe):
        seeds.setdefault(settings.but(seed=0), []).append(settings.seed)
    assert set(map(tuple, seeds.values())) <= {tuple(range(recipe.seeds))}
    assert set(seeds) == {cell.settings for cell in recipe.cells if cell.settings is not None}


def test_the_drops_of_table_1_that_do_not_follow_are_noted() -> None:
    """The drop that a note calls printed is not the difference of the accuracies; the other one is."""
    noted = [cell for cell in load("table1").cells if cell.note.startswith("The paper prints a drop")]
    assert len(noted) == 4
    for cell in noted:
        printed, full, own, right = map(float, re.findall(r"\d+\.\d", cell.note))
        assert (own, full) == (cell.paper, load("table1").cell(cell.against).paper)
        assert round(full - own, 1) == right != printed


def test_numbers_in_names_of_static_methods_are_runs() -> None:
    found = {cell.name.partition(",")[0]: set() for cell in load("table1").cells}
    for cell in load("table1").cells:
        static = parse_static(cell.settings.method) if cell.settings else None
        found[cell.name.partition(",")[0]].add(static.runs if static else 0)
    runs = {name: each for name, each in found.items() if each != {0}}
    assert runs == {"EL2N-2": {2}, "EL2N-20": {20}, "GraNd-4": {4}}


def saved_by(method: str, epochs: int) -> float:
    """Percent, from plans drawn on scores that mean nothing."""
    book = ScoreTable(1000)
    book.scores.copy_(torch.rand(1000, generator=torch.Generator().manual_seed(0)))
    made = parse_method(method)
    kept = 1000 + sum(made.draw(book, Moment(epoch, epochs), 0).kept for epoch in range(1, epochs))
    return 100 * (1 - kept / (1000 * epochs))


def test_savings_that_the_notes_reckon() -> None:
    assert round(saved_by("author_tiers", 200), 1) == 41.3
    assert round(saved_by("author_tiers", 90), 1) == 41.2
    assert round(saved_by("author_tiers", 150), 1) == 41.5
    assert round(saved_by("author_tiers:delta=0.85", 63), 1) == 40.0
    assert abs(63 * math.ceil(20210 / 16) - 80_000) < math.ceil(20210 / 16)
    assert round(saved_by("random:ratio=0.379", 200)) == 33
    assert round(saved_by("random:ratio=0.184", 200)) == 16


def test_the_readme_shows_all() -> None:
    """python -c "from infobatch.lab.papers import recipe; print(recipe.index())" makes its last part."""
    assert (ROOT / "recipes" / "README.md").read_text().endswith(recipes.index() + "\n")


def test_the_readme_s_example_is_a_recipe(tmp_path: Path) -> None:
    text = (ROOT / "recipes" / "README.md").read_text()
    (block,) = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    recipe = small(tmp_path, block)
    assert [cell.name for cell in recipe.cells] == ["Full", "Above the mean", "UCB"]
    assert recipe.waits == ("method ucb",)


def test_a_wheel_carries_the_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert '"recipes" = "infobatch/recipes"' in (ROOT / "pyproject.toml").read_text()
    package = tmp_path / "site-packages" / "infobatch"
    (package / "recipes").mkdir(parents=True)
    monkeypatch.setattr(recipes, "__file__", str(package / "lab" / "papers" / "recipe.py"))
    assert recipes.folder() == package / "recipes"
    (package / "recipes").rmdir()
    with pytest.raises(InputError, match="Reinstall"):
        recipes.folder()


# ---- bad input -------------------------------------------------------------------------------------------


def test_unknown_names_suggest_near_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Did you mean table11"):
        load("tabel11")
    with pytest.raises(InputError, match="no such file"):
        load(str(tmp_path / "none.toml"))
    with pytest.raises(InputError, match="Did you mean pruned"):
        small(tmp_path).cell("prunde")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('title = "A title"\n', "", "title as str in small.toml; got nothing"),
        ('title = "A title"', "title = 3", "title as str in small.toml; got 3"),
        ("tolerance = 0.5", "tolerance = true", "tolerance as float in small.toml; got True"),
        ("seeds = 3", "seeds = 3\nseed = 4", "key of a recipe in small.toml; got 'seed'. Did you mean seeds"),
        ("paper = 89.8", "papper = 89.8", r"cell 2 \(pruned\); got 'papper'. Did you mean paper"),
        ("paper = 89.8", "paper = 89.8\npapper = 1", r"got 'papper'. Did you mean paper\?"),
        ("title =", "title", "a recipe in TOML; got .*small.toml.*line 2"),
        (
            'method = "infobatch"',
            'method = "infobach"',
            r"in small.toml, cell 2 \(pruned\): .*Did you mean infobatch",
        ),
        ('method = "infobatch"', "epoch = 3", r"cell 2 \(pruned\): .*Did you mean epochs"),
        ("epochs = 8", 'epochs = "many"', r"in small.toml, cell 1 \(full\): expected epochs"),
        ('against = "full"\npaper', 'against = "fulll"\npaper', "'fulll'. Did you mean full"),
        ('expect = "lossless"', 'expect = "losless"', "expect as one of lossless"),
        ('expect = "lossless"', 'compare = "factor"\nexpect = "lossless"', "expect as one of less, more"),
        ('against = "full"\nexpect', "expect", "and against, in small.toml"),
        ('name = "pruned"', 'name = "full"', "two cells full"),
        ('name = "pruned"', 'name = "pruned"\nrow = "a"', "measure in small.toml; got a row in pruned"),
        ('name = "pruned"', 'name = "pruned"\nof = "metrik"', "Did you mean metric"),
        ('name = "pruned"', 'name = "pruned"\nfrom = ["r18"]', "a part named in small.toml"),
        ('name = "pruned"', 'name = "pruned"\ncompare = "point"', "Did you mean points"),
        ("paper = 90.0\n", "", "a value in full; got none"),
        ("[settings]", "[quick]\nsettings = { epoch = 3 }\n[settings]", "quick.settings: .*Did you mean epochs"),
        ("[settings]", "parts = { r18 = 3 }\n[settings]", "a table at small.toml, parts.r18; got 3"),
        ('name = "pruned"', 'name = "pruned"\nfrom = [["r18"]]', r"a part named in small.toml.*got \['r18'\]"),
        ("tolerance = 0.5", "tolerance = nan", "tolerance as float in small.toml; got nan"),
        ("tolerance = 0.5", "tolerance = -1", "a tolerance above 0.* cell full; got tolerance -1"),
        ("seeds = 3", "seeds = -3", "seeds .* in small.toml; got -3"),
        ("paper = 90.0", 'compare = "factor"\npaper = 0', "a value above 0 where compare is factor.*got .*value 0"),
        ("seeds = 3", "deep = " + "[" * 5000, "a recipe in TOML; got .*small.toml"),
    ],
)
def test_a_malformed_file_is_named_with_its_key(tmp_path: Path, before: str, after: str, said: str) -> None:
    assert before in SMALL
    with pytest.raises(InputError, match=re.compile(said, re.DOTALL)):
        small(tmp_path, SMALL.replace(before, after, 1))


def test_runs_take_no_change_that_would_make_them_others(tmp_path: Path) -> None:
    recipe = small(tmp_path)
    assert {settings.device for _, settings in runs(recipe, device="cpu", amp="bf16")} == {"cpu"}
    with pytest.raises(InputError, match="change the recipe; got 'lr'"):
        runs(recipe, lr=0.1)
    with pytest.raises(InputError, match="seed; got -1"):
        runs(recipe, seeds=-1)


def test_run_names_are_folders_of_their_own() -> None:
    for recipe in ALL:
        for quick in (False, True):
            made = [recipes.run_name(recipe, cell, settings, quick) for cell, settings in runs(recipe, quick)]
            assert len(set(made)) == len(made)
            assert all(re.fullmatch(r"[a-z0-9_]+(-quick)?/[a-z0-9.-]+", name) for name in made)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is there from 3.11 on")
def test_files_are_plain_toml() -> None:
    import tomllib

    for path in recipes.folder().glob("*.toml"):
        assert tomllib.loads(path.read_text())["cell"]
