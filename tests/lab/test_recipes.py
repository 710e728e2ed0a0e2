"""Recipes: the files that are there, how they are read, and what outcomes say."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats

from infobatch.errors import InputError
from infobatch.lab import catalogue, nets, optim, recipes, records, training
from infobatch.lab.evidence import Measurement, evidence, measure
from infobatch.lab.outcomes import CellOutcome, Outcome, listing, outcome
from infobatch.lab.quantities import VALUES
from infobatch.lab.recipes import load, runs
from infobatch.lab.records import Run
from infobatch.lab.settings import Settings, parse_method, parse_static
from infobatch.lab.verdicts import WITHOUT_SPREAD
from infobatch.methods import METHODS
from infobatch.schedules import Moment
from infobatch.scorebook import ScoreBook

ROOT = Path(__file__).parents[2]
ALL = recipes.all_recipes()
BY_NAME = pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)

SMALL = """
title = "A title"
claim = "A claim."
source = { paper = "002", place = "Table 0" }
needs = { hardware = "none" }
seeds = 3
tolerance = 0.5

[settings]
task = "digits"
epochs = 8

[[cell]]
name = "full"
paper = 90.0
settings = { method = "full" }

[[cell]]
name = "pruned"
against = "full"
paper = 89.8
saved = 30
settings = { method = "infobatch" }

[[cell]]
name = "at least as good"
against = "full"
expect = "lossless"
settings = { method = "saving:share=0.2" }

[[cell]]
name = "another time"
waits = "method of_tomorrow"
"""


def small(tmp_path: Path, text: str = SMALL) -> recipes.Recipe:
    path = tmp_path / "small.toml"
    path.write_text(text)
    return load(str(path))


def run(settings: Settings, metric: float, saved: float = 0.0, seconds: float = 60.0, time: str = "2026") -> Run:
    start = {"settings": settings.plain(), "time": time, "environment": {"gpu": None, "cpu": "a CPU"}}
    return Run("made up", start, end={"metric": metric, "saved": saved, "seconds": {"total": seconds}})


def made(recipe: recipes.Recipe, **metrics: list[float]) -> list[Run]:
    """Runs of the named cells (underscores for spaces), seed by seed, each with the saving that its cell prints."""
    found = []
    for name, values in metrics.items():
        cell = recipe.cell(name.replace("_", " "))
        assert cell.settings is not None
        for seed, value in enumerate(values):
            found.append(run(cell.settings.but(seed=seed), value, (cell.saved or 0.0) / 100))
    return found


def row(found: Outcome, name: str) -> CellOutcome:
    return next(each for each in found.rows if each.cell.name == name)


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
            assert cell.settings.model in nets.NETS or cell.settings.model.startswith("timm:resnet")
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
    for _, settings in quick:
        assert settings.task == "digits"
        assert settings.model in ("conv", "mlp")
        seconds += (
            settings.epochs * math.ceil(1257 / settings.batch_size) * (0.008 if settings.model == "conv" else 0.002)
        )
    assert seconds <= 60
    for cell in recipe.cells:
        assert (cell.quick is None) == (cell.settings is None)
        if cell.quick is not None and cell.settings is not None:
            assert cell.quick.method == cell.settings.method
            assert cell.quick.optimizer == cell.settings.optimizer
            if parse_static(cell.quick.method) is None:
                parse_method(cell.quick.method).check(cell.quick.epochs)
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


def saved_by(method: str, epochs: int) -> float:
    """Percent, from plans drawn on scores that mean nothing."""
    book = ScoreBook(1000)
    book.scores.copy_(torch.rand(1000, generator=torch.Generator().manual_seed(0)))
    made = parse_method(method)
    kept = 1000 + sum(made.draw(book, Moment(epoch, epochs), 0).kept for epoch in range(1, epochs))
    return 100 * (1 - kept / (1000 * epochs))


def test_savings_that_the_notes_reckon() -> None:
    assert round(saved_by("author_tiers", 200), 1) == 41.3
    assert round(saved_by("author_tiers", 90), 1) == 41.2
    assert round(saved_by("author_tiers", 150), 1) == 41.5
    assert round(saved_by("random:ratio=0.379", 200)) == 33
    assert round(saved_by("random:ratio=0.184", 200)) == 16


def test_the_readme_shows_all() -> None:
    """python -c "from infobatch.lab import recipes; print(recipes.index())" makes its last part."""
    assert (ROOT / "recipes" / "README.md").read_text().endswith(recipes.index() + "\n")


def test_the_readme_s_example_is_a_recipe(tmp_path: Path) -> None:
    text = (ROOT / "recipes" / "README.md").read_text()
    (block,) = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    recipe = small(tmp_path, block)
    assert [cell.name for cell in recipe.cells] == ["Full", "Above the mean", "UCB"]
    assert recipe.waits == ("method ucb",)


def test_a_wheel_carries_the_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert '"recipes" = "infobatch/lab/recipes_files"' in (ROOT / "pyproject.toml").read_text()
    (tmp_path / "recipes_files").mkdir()
    monkeypatch.setattr(recipes, "__file__", str(tmp_path / "recipes.py"))
    assert recipes.folder() == tmp_path / "recipes_files"
    (tmp_path / "recipes_files").rmdir()
    with pytest.raises(InputError, match="Install the package again"):
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
        ('name = "pruned"', 'name = "full"', "two full"),
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
        ("seeds = 3", "seeds = -3", "seeds from 1 on in small.toml; got -3"),
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
    with pytest.raises(InputError, match="leaves the recipe what it is; got 'lr'"):
        runs(recipe, lr=0.1)
    with pytest.raises(InputError, match="a number of seeds from 1 on; got -1"):
        runs(recipe, seeds=-1)


# ---- outcomes --------------------------------------------------------------------------------------------


def test_nothing_run(tmp_path: Path) -> None:
    found = outcome(small(tmp_path))
    assert [each.text for each in found.rows] == ["not run", "not run", "not run", "waits for method of_tomorrow"]
    assert found.summary == "3 not run, 1 waits"
    assert found.when == ""


def test_the_difference_counts_and_not_the_value(tmp_path: Path) -> None:
    """Full data two points higher than in the paper; the method as far behind it as in the paper, or further."""
    recipe = small(tmp_path)
    full = [92.0, 92.1, 91.9]
    found = outcome(recipe, made(recipe, full=full, pruned=[91.8, 91.9, 91.75]))
    assert row(found, "full").status == "not reproduced"
    assert row(found, "full").why == "value 92.00 (91.83 to 92.17), paper 90.00"
    pruned = row(found, "pruned")
    assert pruned.status == "reproduced"
    assert (pruned.n, pruned.saved, pruned.where) == (3, 30.0, ("a CPU",))
    assert pruned.compared == pytest.approx(-0.5 / 3 - 1 / 60)
    assert pruned.wanted == pytest.approx(-0.2)
    low, high = stats.t.interval(0.9, 2, -0.55 / 3, stats.sem([-0.2, -0.2, -0.15]))
    assert [pruned.low, pruned.high] == pytest.approx([low, high])
    assert [row(found, "full").low, row(found, "full").high] == pytest.approx([91.83, 92.17], abs=0.01)
    found = outcome(recipe, made(recipe, full=full, pruned=[90.0, 90.2, 89.9]))
    assert row(found, "pruned").status == "not reproduced"  # though 90.03 is near the paper's 89.8


def test_seeds_are_paired(tmp_path: Path) -> None:
    """What differs from seed to seed in both alike is no spread of the difference."""
    recipe = small(tmp_path)
    found = outcome(recipe, made(recipe, full=[80.0, 90.0, 100.0], pruned=[79.8, 89.81, 99.79]))
    assert row(found, "pruned").status == "reproduced"
    assert row(found, "full").status == "undecided"


def test_one_seed_decides_nothing(tmp_path: Path) -> None:
    recipe = small(tmp_path)
    found = outcome(recipe, made(recipe, full=[90.0], pruned=[89.8]))
    assert [each.status for each in found.rows[:2]] == ["too few seeds"] * 2
    others = [replace(each, start={**each.start, "settings": {**each.start["settings"], "seed": 7}}) for each in
              made(recipe, pruned=[89.8])]  # fmt: skip
    found = outcome(recipe, [*made(recipe, full=[90.0, 90.1]), *others])
    assert row(found, "pruned").why == "no seed in common with full"
    alone = row(outcome(recipe, made(recipe, pruned=[89.8, 89.9])), "pruned")
    assert (alone.status, alone.why) == ("undecided", "full, which it is held against, was not run")


def test_a_saving_must_be_met_too(tmp_path: Path) -> None:
    recipe = small(tmp_path)
    full, pruned = made(recipe, full=[90.0, 90.1, 90.2]), made(recipe, pruned=[89.8, 89.9, 90.01])
    assert row(outcome(recipe, [*full, *pruned]), "pruned").status == "reproduced"
    less = [replace(each, end={**(each.end or {}), "saved": 0.27}) for each in pruned]
    found = row(outcome(recipe, [*full, *less]), "pruned")
    assert found.status == "not reproduced"
    assert found.why.endswith("saved 27.0 %, paper 30.0 %")


@pytest.mark.parametrize("seed", range(40))
def test_reproduced_is_a_test_of_equality(tmp_path: Path, seed: int) -> None:
    """Two one-sided t-tests at 5 %, by scipy."""
    recipe = small(tmp_path)
    generator = torch.Generator().manual_seed(seed)
    n = 2 + seed % 5
    middle = 90 + float(torch.empty(()).uniform_(-1, 1, generator=generator))
    values = (middle + 0.3 * torch.randn(n, generator=generator, dtype=torch.float64)).tolist()
    status = row(outcome(recipe, made(recipe, full=values)), "full").status
    above = stats.ttest_1samp(values, 89.5, alternative="greater").pvalue
    below = stats.ttest_1samp(values, 90.5, alternative="less").pvalue
    if max(above, below) < 0.05:
        assert status == "reproduced"
    elif above > 0.95 or below > 0.95:
        assert status == "not reproduced"
    else:
        assert status == "undecided"


def test_lossless_may_be_better(tmp_path: Path) -> None:
    recipe = small(tmp_path)
    full = [90.0, 90.1, 90.2]
    for values, status in (
        ([92.0, 92.1, 92.3], "reproduced"),
        ([89.8, 89.9, 90.01], "reproduced"),
        ([89.0, 89.1, 89.21], "not reproduced"),
        ([89.0, 90.1, 90.0], "undecided"),
    ):
        found = outcome(recipe, made(recipe, full=full, at_least_as_good=values))
        assert row(found, "at least as good").status == status


@pytest.mark.parametrize(
    ("relation", "values", "status"),
    [
        ("less", [89.0, 89.1, 89.21], "reproduced"),
        ("less", [91.0, 91.2, 91.1], "not reproduced"),
        ("more", [91.0, 91.2, 91.1], "reproduced"),
        ("more", [89.0, 89.1, 89.21], "not reproduced"),
        ("more", [89.0, 92.0, 90.2], "undecided"),
        ("same", [90.1, 90.2, 90.21], "reproduced"),
        ("same", [91.0, 91.2, 91.1], "not reproduced"),
    ],
)
def test_relations(tmp_path: Path, relation: str, values: list[float], status: str) -> None:
    recipe = small(tmp_path, SMALL.replace('expect = "lossless"', f'expect = "{relation}"'))
    found = outcome(recipe, made(recipe, full=[90.0, 90.1, 90.2], at_least_as_good=values))
    assert row(found, "at least as good").status == status


def test_alike_differences_of_few_seeds_have_no_spread_to_judge_by(tmp_path: Path) -> None:
    """Accuracies are counts: two or three differences alike are no certainty. As in comparisons."""
    recipe = small(tmp_path)
    for n, status in ((2, "undecided"), (WITHOUT_SPREAD - 1, "undecided"), (WITHOUT_SPREAD, "reproduced")):
        assert row(outcome(recipe, made(recipe, full=[90.0] * n)), "full").status == status
    found = outcome(recipe, made(recipe, full=[90.0, 90.1, 90.2], pruned=[89.8, 89.9, 90.0]))
    assert row(found, "pruned").status == "undecided"  # alike but for the last bit of a float
    assert (row(found, "pruned").low, row(found, "pruned").high) == (None, None)


def test_the_last_run_of_a_seed_counts_and_hardware_does_not(tmp_path: Path) -> None:
    recipe = small(tmp_path)
    settings = recipe.cell("full").settings
    assert settings is not None
    elsewhere = settings.but(device="cuda", amp="bf16", workers=4, data="/data")
    found = outcome(recipe, [run(settings, 50.0), run(elsewhere, 90.0), run(settings.but(lr=0.2), 10.0)])
    assert (row(found, "full").ours, row(found, "full").n) == (90.0, 1)
    assert found.where == ("a CPU, bf16",)


def test_one_run_serves_two_recipes() -> None:
    cell = load("table4").cell("R-18, full")
    assert cell.settings is not None
    done = [run(cell.settings.but(seed=seed), 78.2 + seed / 10) for seed in range(3)]
    assert row(outcome(load("table4"), done), "R-18, full").n == 3
    assert row(outcome(load("table6"), done), "CIFAR-100, R-18, full").n == 3


def test_hours_count_by_their_ratio() -> None:
    recipe = load("early_table4")
    full, pruned = recipe.cell("Full, time").settings, recipe.cell("Below the mean, time").settings
    assert full is not None
    assert pruned is not None
    for minutes, status in ((70, "reproduced"), (95, "not reproduced"), (101, "not reproduced")):
        done = [run(full, 80.0, seconds=6000), run(pruned, 80.0, 0.33, seconds=60 * minutes)]
        found = outcome(recipe, done)
        assert row(found, "Full, time").status == "for comparison"
        assert row(found, "Full, time").ours == pytest.approx(6000 / 3600)
        assert row(found, "Below the mean, time").status == status
    assert row(found, "Below the mean, time").why.endswith("and the order is the other way round")


@pytest.mark.parametrize(("relation", "status"), [("less", "reproduced"), ("more", "not reproduced")])
def test_relations_of_ratios(tmp_path: Path, relation: str, status: str) -> None:
    recipe = small(tmp_path, SMALL.replace('expect = "lossless"', f'compare = "factor"\nexpect = "{relation}"'))
    found = outcome(recipe, made(recipe, full=[90.0], at_least_as_good=[45.0]))
    assert row(found, "at least as good").status == status
    assert row(found, "at least as good").compared == 0.5
    nothing = outcome(recipe, made(recipe, full=[0.0, 0.0], at_least_as_good=[45.0, 44.0]))
    assert row(nothing, "at least as good").status == "undecided"
    assert "full is 0 here" in row(nothing, "at least as good").why


@pytest.mark.parametrize("metric", [None, "soon", [1.0], math.nan, math.inf, True, {}], ids=str)
def test_runs_that_went_wrong_are_not_hidden(tmp_path: Path, metric: Any) -> None:
    recipe = small(tmp_path)
    done = made(recipe, full=[90.0, 90.1, 90.2, 90.0])
    done[1] = replace(done[1], end={**(done[1].end or {}), "metric": metric})
    found = row(outcome(recipe, done), "full")
    assert (found.status, found.why) == ("not reproduced", "1 of 4 runs ended without a finite metric")


@pytest.mark.parametrize(
    "epoch",
    [
        {"losses": "none"},
        {"losses": {"before": [1, "x"], "after": [0, 1]}},
        {"losses": {"before": [2], "after": [0]}},
    ],
    ids=str,
)
def test_what_is_no_histogram_in_a_record_is_left_out(epoch: dict[str, Any]) -> None:
    one = run(Settings(), 90.0)
    one.epochs.append(epoch)
    assert {name: of(one) for name, of in VALUES.items() if name.startswith(("distance", "saved_"))} == {
        "distance_after": None, "distance_rescaled": None, "saved_early": None, "saved_middle": None,
        "saved_late": None,
    }  # fmt: skip


def test_a_stand_in_proves_nothing(tmp_path: Path) -> None:
    recipe = small(tmp_path)
    done = [run(settings, 90.0 if cell.name == "full" else 89.8, 0.3) for cell, settings in runs(recipe, quick=True)]
    found = outcome(recipe, done, quick=True)
    assert [each.text for each in found.rows[:3]] == ["stand-in"] * 3
    assert found.stand_in == "stand-in: digits for digits"
    assert row(found, "pruned").compared == pytest.approx(-0.2)
    assert outcome(recipe, done).summary == "3 not run, 1 waits"


def test_losses_after_rescaling_are_nearer() -> None:
    """The real thing: one quick run of Figure 6, through the training loop."""
    recipe = load("figure6")
    todo = runs(recipe, quick=True, seeds=1)
    assert len(todo) == 1
    facts = list(training.run(todo[0][1]))
    done = Run("quick", facts[0], [fact for fact in facts if fact["kind"] == "epoch"], end=facts[-1])
    found = outcome(recipe, [done], quick=True)
    after, rescaled = found.rows
    assert after.ours is not None
    assert rescaled.ours is not None
    assert 0 < rescaled.ours < after.ours / 2
    assert found.stand_in == "stand-in: digits for cifar10"


def test_distances_of_losses_by_hand() -> None:
    """Full epochs say nothing about pruning and are left out."""
    pruned = {"before": [6, 2], "after": [2, 2], "rescaled": [5, 3]}
    full = {"before": [6, 2], "after": [6, 2], "rescaled": [6, 2]}
    done = replace(run(Settings(), 90.0), epochs=[{"losses": full}, {}, {"losses": pruned}])
    assert VALUES["distance_after"](done) == pytest.approx(25.0)
    assert VALUES["distance_rescaled"](done) == pytest.approx(12.5)
    assert VALUES["distance_after"](run(Settings(), 90.0)) is None


def test_the_number_pruned_by_epoch() -> None:
    saved = [0.0] + [0.1] * 9 + [0.4] * 77 + [0.0] * 13
    done = replace(run(Settings(), 90.0), epochs=[{"saved": share} for share in saved])
    assert VALUES["saved_early"](done) == pytest.approx(9.0)
    assert VALUES["saved_middle"](done) == VALUES["saved_late"](done) == pytest.approx(40.0)


# ---- measurements ----------------------------------------------------------------------------------------

MEASURE = "infobatch.lab.measures:operations"


def timed(time: str = "2026", quick: bool = False, **changes: float) -> Measurement:
    paper = {"mean": 1.2, "percentile": 13.0, "sort": 123.4} | changes
    rows = {f"{library} {name}, 1.28M": value for library in ("numpy", "gpu") for name, value in paper.items()}
    return Measurement(MEASURE, rows, {"cpu": "a CPU", "gpu": "a GPU"}, time, quick)


def test_measured_rows_count_by_order_and_magnitude() -> None:
    recipe = load("table11")
    found = outcome(recipe, measurements=[timed()])
    assert row(found, "numpy sort, 1.28M").status == "reproduced"
    assert row(found, "gpu sort, 1.28M").status == "reproduced"
    assert row(found, "gpu sort, 1.28M").where == ("a GPU",)
    assert row(found, "numpy sort, 14M").status == "not run"
    found = outcome(recipe, measurements=[timed(sort=12.0)])
    assert row(found, "numpy sort, 1.28M").status == "not reproduced"
    assert "the other way round" in row(found, "numpy sort, 1.28M").why
    assert row(found, "gpu sort, 1.28M").status == "not reproduced"
    found = outcome(recipe, measurements=[timed(sort=13.0 * 96)])
    assert row(found, "numpy sort, 1.28M").status == "not reproduced"
    assert row(outcome(recipe, measurements=[timed(mean=13.0)]), "numpy mean, 1.28M").status == "not reproduced"
    nothing = outcome(recipe, measurements=[timed(mean=0.0, sort=0.0, percentile=0.0)])
    assert row(nothing, "numpy sort, 1.28M").status == "undecided"


def test_the_last_measurement_counts_and_quick_ones_apart() -> None:
    recipe = load("table11")
    found = outcome(recipe, measurements=[timed("2027", mean=0.6), timed("2026"), timed("2028", quick=True)])
    assert row(found, "numpy mean, 1.28M").ours == 0.6
    quick = outcome(recipe, measurements=[timed("2028", quick=True)], quick=True)
    assert {each.status for each in quick.rows} == {"for comparison", "not run"}


def test_measuring(tmp_path: Path) -> None:
    recipe = load("figure5")
    made = measure(recipe)
    assert {each.status for each in outcome(recipe, measurements=[made]).rows} == {"consistent"}
    with pytest.raises(InputError, match="It is trained"):
        measure(load("table4"))
    for name in ("infobatch.lab.measures:nothing", "os:system", "..x:y", ":", "nowhere"):
        with pytest.raises(InputError, match=r"measure as MODULE:FUNCTION, of \(quick, tick\), in figure5"):
            measure(replace(recipe, measure=name))


# ---- records ---------------------------------------------------------------------------------------------


def write(path: Path, *facts: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(map(records.line, facts)))


def facts_of(done: Run) -> list[dict[str, Any]]:
    return [{"kind": "start", "format": 1, "run": done.name, **done.start}, {"kind": "end", **(done.end or {})}]


def test_damaged_records_are_named_and_the_rest_counts(tmp_path: Path) -> None:
    known = evidence()
    good, other = run(Settings(), 90.0), run(Settings(seed=1), 91.0)
    write(tmp_path / "a" / "record.jsonl", *facts_of(good))
    write(tmp_path / "b" / "record.jsonl", *facts_of(other)[:1])  # still running
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "record.jsonl").write_text("not JSON\n")
    start, end = facts_of(good)
    write(tmp_path / "d" / "record.jsonl", {**start, "settings": {"colour": "blue"}}, end)
    write(tmp_path / "e.jsonl", timed().plain())
    write(tmp_path / "f.jsonl", {**timed().plain(), "rows": {"numpy mean, 1.28M": "soon"}})
    write(tmp_path / "foreign.jsonl", {"kind": "of another program"})
    whole = (tmp_path / "e.jsonl").read_bytes()
    (tmp_path / "g.jsonl").write_bytes(whole + whole.replace(b"numpy", b"\xff\xfe"))  # of two lines the second
    write(tmp_path / "h.jsonl", {**timed().plain(), "environment": "a machine"})
    (tmp_path / "i.jsonl").write_bytes(whole + b"[" * 100_000)
    write(tmp_path / "j.jsonl", *facts_of(good), start, end, {"kind": "start"})  # two whole runs before the damage
    text = (tmp_path / "j.jsonl").read_text()
    (tmp_path / "k.jsonl").write_text(f"x{text}")  # here, and in the next two, it is the first line
    (tmp_path / "l.jsonl").write_text(text[:40])
    write(tmp_path / "m.jsonl", end, start, end)
    found = evidence(tmp_path)
    assert found.runs[len(known.runs) :] == (found.runs[-1],)
    assert found.runs[-1].settings == good.settings
    assert found.measurements[len(known.measurements) :] == (timed(),)
    said = found.unreadable[len(known.unreadable) :]
    assert [Path(text.partition(":")[0]).relative_to(tmp_path).parts[0] for text in said] == [
        *("c", "d", "f.jsonl", "g.jsonl", "h.jsonl", "i.jsonl", "j.jsonl", "k.jsonl", "l.jsonl", "m.jsonl"),
    ]
    assert [re.findall(r"whose line \d+", text) for text in said[-4:]] == [["whose line 5"], *3 * [["whose line 1"]]]
    assert (found.runs[-1].file, found.measurements[-1].file) == (
        tmp_path / "a" / "record.jsonl",
        tmp_path / "e.jsonl",
    )


def test_a_cell_names_the_files_of_its_runs_and_of_their_partners(tmp_path: Path) -> None:
    recipe = small(tmp_path)
    full, pruned = made(recipe, full=[90.0, 90.1]), made(recipe, pruned=[89.8, None])  # type: ignore[list-item]
    places = [tmp_path / "full" / "all.jsonl", tmp_path / "pruned" / "all.jsonl"]
    for place, done in zip(places, (full, pruned), strict=True):
        write(place, *(fact for each in done for fact in facts_of(each)))
    found = outcome(recipe, records.read_many(tmp_path))
    assert row(found, "full").records == (places[0],)
    assert row(found, "pruned").why == "1 of 2 runs ended without a finite metric"
    assert row(found, "pruned").plain()["records"] == [str(places[1]), str(places[0])]
    write(tmp_path / "measured.jsonl", timed().plain())
    (kept,) = (each for each in evidence(tmp_path).measurements if each.file == tmp_path / "measured.jsonl")
    assert row(outcome(load("table11"), measurements=[kept]), "numpy mean, 1.28M").records == (kept.file,)


def test_the_list_knows_what_was_run(tmp_path: Path) -> None:
    quick = [run(settings, 90.0, time="2026-01-02") for _, settings in runs(load("table10"), quick=True)]
    for at, done in enumerate(quick):
        write(tmp_path / f"{at}" / "record.jsonl", *facts_of(done))
    lines = {line.recipe.name: line for line in listing(evidence(tmp_path))}
    assert list(lines) == recipes.names()
    assert lines["table10"].outcome.summary == "2 not run"
    assert lines["table10"].quick.summary == "2 stand-in"
    assert lines["table10"].quick.when == "2026-01-02"
    assert json.loads(json.dumps([line.plain() for line in lines.values()]))[9]["stand_in"].startswith("stand-in")
    for line in lines.values():
        json.dumps(line.outcome.plain(), allow_nan=False)


def test_the_records_kept_here_can_be_read() -> None:
    """Table 11 has been measured: its records say so, and where newer sorts are faster than the paper's."""
    found = evidence()
    assert not found.unreadable
    table11 = outcome(load("table11"), found.runs, found.measurements)
    judged = {each.cell.name: each.status for each in table11.rows if each.cell.paper is not None}
    assert set(judged.values()) <= {"reproduced", "not reproduced"}
    assert {status for name, status in judged.items() if name.startswith("torch")} == {"reproduced"}
    for measurement in found.measurements:
        assert {"torch", "python", "cpu", "processors"} <= measurement.environment.keys()


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
