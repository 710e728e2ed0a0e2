"""Measurements and records of recipes: kept, read back, and found again by their cells."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_recipes import made, row, run, small, timed

from infobatch.errors import InputError
from infobatch.lab.papers import recipe as recipes
from infobatch.lab.papers.gathered import evidence, measure
from infobatch.lab.papers.judge import listing, outcome
from infobatch.lab.papers.recipe import load, runs
from infobatch.lab.runs import records
from infobatch.lab.runs.records import Run
from infobatch.lab.train.settings import Settings


def test_measured_rows_count_by_order_and_magnitude() -> None:
    recipe = load("table11")
    found = outcome(recipe, measurements=[timed()])
    assert row(found, "numpy sort, 1.28M").status == "reproduced"
    assert row(found, "gpu sort, 1.28M").status == "reproduced"
    assert row(found, "gpu sort, 1.28M").where == ("a GPU",)
    assert row(found, "numpy sort, 14M").status == "not run"
    found = outcome(recipe, measurements=[timed(sort=12.0)])
    assert row(found, "numpy sort, 1.28M").status == "not reproduced"
    assert "the order is reversed" in row(found, "numpy sort, 1.28M").why
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
    with pytest.raises(InputError, match="is trained"):
        measure(load("table4"))
    for name in ("infobatch.lab.papers.microbench:nothing", "os:system", "..x:y", ":", "nowhere"):
        with pytest.raises(InputError, match=r"MODULE:FUNCTION .* in figure5"):
            measure(replace(recipe, measure=name))


# ---- records ---------------------------------------------------------------------------------------------


def write(path: Path, *facts: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(map(records.line, facts)))


def facts_of(done: Run) -> list[dict[str, Any]]:
    return [{"kind": "start", "format": 2, "run": done.name, **done.start}, {"kind": "end", **(done.end or {})}]


def test_damaged_records_are_named_and_the_rest_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infobatch.lab.papers.gathered.kept_records", list)
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
