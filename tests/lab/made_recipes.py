"""A small recipe, and runs and measurements that were never made."""

from __future__ import annotations

from pathlib import Path

from infobatch.lab.papers import recipe as recipes
from infobatch.lab.papers.gathered import Measurement
from infobatch.lab.papers.judge import CellOutcome, Outcome
from infobatch.lab.papers.recipe import load
from infobatch.lab.runs.records import Run
from infobatch.lab.train.settings import Settings

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


MEASURE = "infobatch.lab.papers.microbench:operations"


def timed(time: str = "2026", quick: bool = False, **changes: float) -> Measurement:
    paper = {"mean": 1.2, "percentile": 13.0, "sort": 123.4} | changes
    rows = {f"{library} {name}, 1.28M": value for library in ("numpy", "gpu") for name, value in paper.items()}
    return Measurement(MEASURE, rows, {"cpu": "a CPU", "gpu": "a GPU"}, time, quick)
