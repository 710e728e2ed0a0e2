"""Runs grouped, paired and told apart."""

from __future__ import annotations

import json
import math
import random
import statistics
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from infobatch.errors import InputError, StateError
from infobatch.lab.compare.comparison import Row, compare
from infobatch.lab.compare.grouping import group
from infobatch.lab.compare.verdicts import Difference, of_differences
from infobatch.lab.runs.fields import metric_of
from infobatch.lab.runs.records import Run, looks_beside
from infobatch.lab.train.settings import Settings


def made(method: str, seed: int, metric: float | None, **changes: Any) -> Run:
    end = {
        "metric": metric, "saved": changes.pop("saved", 0.0), "steps": changes.pop("took", 100),
        "seconds": {"total": changes.pop("seconds", 10.0)},
    }  # fmt: skip
    source, name, finished = changes.pop("source", ""), changes.pop("name", None), changes.pop("finished", True)
    time = changes.pop("time", "")
    settings = Settings(method=method, seed=seed, **changes)
    start = {"settings": settings.plain(), "metric": "accuracy, %", "source": source, "time": time}
    return Run(name or f"{method}-{seed}", start, end=end if finished else None)


def many(method: str, metrics: list[float], **changes: Any) -> list[Run]:
    return [made(method, seed, metric, **changes) for seed, metric in enumerate(metrics)]


def differing(values: list[float]) -> Difference:
    return Difference(tuple(range(len(values))), *of_differences(values, 0.95))


def row_of(runs: list[Run], label: str, **options: Any) -> Row:
    return next(row for row in compare(runs, **options).rows if row.label == label)


def test_looks_widen_the_intervals_and_are_told() -> None:
    full, pruned = [90.0, 95.0, 92.0, 97.0], [90.5, 95.1, 91.6, 96.7]
    runs = many("full", full) + many("random", pruned)
    first, again = compare(runs, looks=()), compare(runs, looks=(2, 4))
    for found, level, looks in ((first, 0.95, (4,)), (again, 1 - 0.05 / 3, (2, 4)), (compare(runs), 0.95, None)):
        paired = stats.ttest_rel(pruned, full).confidence_interval(level)
        difference = found.rows[1].difference
        assert difference is not None
        assert (difference.low, difference.high) == pytest.approx((paired.low, paired.high))
        assert (found.level, found.interval_level, found.looks) == (0.95, pytest.approx(level), looks)
    assert "first analysis" in first.looked
    assert all(word in again.looked for word in ("analysis 2", "2, 4 seeds", "98.33 %", "95 %", "5 %"))
    assert "only once" in compare(runs).looked
    assert compare(runs, looks=(2,)).looks == (2, 4)  # a look that is not yet noted is one, too


def test_rows_are_means_over_seeds_and_differences_are_paired() -> None:
    full, pruned = [90.0, 95.0, 92.0, 97.0], [90.1, 95.1, 91.9, 96.9]
    runs = many("full", full) + many("infobatch", pruned, saved=0.3, took=70, seconds=7.0)
    baseline, row = compare(runs).rows
    assert (baseline.label, baseline.verdict.kind, baseline.difference) == ("full", "baseline", None)
    assert (row.n, row.mean, row.std) == (4, statistics.fmean(pruned), statistics.stdev(pruned))
    assert (row.saved, row.steps, row.seconds, row.seconds_std) == pytest.approx((0.3, 70.0, 7.0, 0.0))
    assert row.difference is not None
    paired = stats.ttest_rel(pruned, full).confidence_interval(0.95)
    assert (row.difference.low, row.difference.high) == pytest.approx((paired.low, paired.high))
    assert row.verdict.kind == "lossless"  # although the spread between seeds is ten times the margin


def test_only_common_seeds_are_paired_and_the_others_named() -> None:
    runs = many("full", [90.0, 91.0]) + many("random", [90.0, 91.2, 70.0])
    row = row_of(runs, "random")
    assert row.n == 3
    assert row.difference is not None
    assert row.difference.seeds == (0, 1)
    assert row.difference.mean == pytest.approx(0.1)
    assert any("seed 2" in note and "random" in note for note in compare(runs).notes)


def test_one_seed_gives_no_verdict() -> None:
    row = row_of([made("full", 0, 90.0), made("infobatch", 0, 99.0)], "infobatch")
    assert row.verdict.text == "one seed: no verdict"
    assert row.difference is not None
    assert row.difference.low is None


def test_two_runs_of_one_seed_are_one_seed() -> None:
    later = made("infobatch", 0, 90.0, name="a", time="2026-02-01T00:00:00Z")
    earlier = made("infobatch", 0, 90.1, name="b", time="2026-01-01T00:00:00Z")
    found = compare([made("full", 0, 90.0), later, earlier])
    assert (found.rows[1].n, found.rows[1].mean) == (1, 90.0)
    assert found.rows[1].verdict.kind == "one seed"
    assert any("b and a" in note for note in found.notes)


def test_runs_without_a_metric_are_named_and_no_verdict_is_drawn_past_them() -> None:
    runs = many("full", [90.0] * 5) + many("infobatch", [90.0, 90.1, 89.9, 90.0]) + [made("infobatch", 4, None)]
    found = compare(runs)
    assert found.rows[1].verdict.kind == "failed"
    assert "1 of 5" in found.rows[1].verdict.text
    assert any("infobatch-4" in note and "finite" in note for note in found.notes)


@pytest.mark.parametrize("metric", [math.nan, math.inf, "high", True, 10**400, -1e308])
def test_what_is_no_finite_number_is_no_metric(metric: Any) -> None:
    assert metric_of(made("full", 0, metric)) is None


def test_unfinished_runs_are_named_and_left_out() -> None:
    runs = [*many("full", [90.0, 91.0]), made("full", 2, 92.0, finished=False), *many("infobatch", [90.0, 91.0])]
    found = compare(runs)
    assert found.rows[0].n == 2
    assert any("full-2" in note and "0 of 40 epochs" in note for note in found.notes)
    alone = compare([made("full", 0, 1.0), made("random", 0, 1.0, finished=False)])
    assert alone.rows[1].verdict.text == "no verdict: no run has finished"


def test_without_full_data_there_is_no_verdict() -> None:
    found = compare(many("infobatch", [90.0, 91.0]))
    assert found.rows[0].verdict.kind == "alone"
    assert "no full data" in found.rows[0].verdict.text
    assert any("no run of full" in note for note in found.notes)
    apart = compare([made("full", 0, 90.0), made("full", 1, 90.0), made("random", 7, 90.0), made("random", 8, 90.0)])
    assert apart.rows[1].verdict.text == "no verdict: no seed in common with full data"


def test_other_settings_are_never_compared_in_silence() -> None:
    runs = many("full", [90.0, 91.0], lr=0.1) + many("infobatch", [95.0, 96.0], lr=0.2)
    found = compare(runs)
    assert [row.label for row in found.rows] == ["full · lr=0.1", "infobatch · lr=0.2"]
    assert found.rows[1].verdict.kind == "alone"
    assert any("lr (0.1, 0.2)" in note for note in found.notes)


def test_each_setting_has_its_own_baseline() -> None:
    runs = [
        run
        for lr, gain in ((0.1, 1.0), (0.2, -1.0))
        for run in many("full", [90.0, 91.0, 92.0], lr=lr) + many("random", [90 + gain, 91.1 + gain, 92 + gain], lr=lr)
    ]
    found = {row.label: row.verdict.kind for row in compare(runs).rows}
    assert found["random · lr=0.1"] == "better"
    assert found["random · lr=0.2"] == "worse"


def test_as_few_settings_as_tell_runs_apart_are_in_the_label() -> None:
    runs = many("full", [1.0], epochs=10, lr=0.1, batch_size=8) + many("full", [1.0], epochs=20, lr=0.2, batch_size=16)
    assert list(group(runs)) == ["full · epochs=10", "full · epochs=20"]
    assert "lr (0.1, 0.2)" in compare(runs).notes[0]


def test_settings_of_cost_alone_are_named_but_do_not_part_runs() -> None:
    runs = many("full", [90.0, 91.0], threads=1) + many("infobatch", [90.0, 91.0], threads=2)
    found = compare(runs)
    assert [row.label for row in found.rows] == ["full", "infobatch"]
    assert any("threads (1, 2)" in note and "seconds" in note for note in found.notes)


def test_data_are_known_by_their_source_rather_than_their_place() -> None:
    moved = [made("full", 0, 90.0, data="/a", source="x"), made("random", 0, 90.0, data="/b", source="x")]
    assert list(group(moved)) == ["full", "random"]
    other = [made("full", 0, 90.0, data="/a", source="x"), made("random", 0, 90.0, data="/a", source="y")]
    assert list(group(other)) == ["full · source=x", "random · source=y"]


def test_different_nets_under_the_same_settings_are_told_and_unknown_ones_are_not_held_against_any() -> None:
    """A task's own net may be edited between two seeds."""

    def note(*nets: str | None, **changes: Any) -> list[str]:
        runs = many("full", [90.0] * len(nets), **changes) + many("random", [90.0] * len(nets), **changes)
        for run, net in zip(runs, 2 * nets, strict=True):
            run.start.update({} if net is None else {"net": net})
        return [note for note in compare(runs).notes if "net" in note]

    (told,) = note("a", "a", "b")
    assert "a (seeds 0, 1); b (seed 2)" in told
    assert note("a", None, "a") == note(None, None) == []
    big, small = many("full", [90.0], model="resnet18"), many("full", [90.0], model="mlp")
    big[0].start["net"], small[0].start["net"] = "a", "b"
    assert not any("nets" in note for note in compare(big + small).notes)


def test_full_data_with_as_many_steps_is_matched_to_its_method() -> None:
    full = many("full", [90.0, 91.0, 92.0])
    ours = [made("infobatch", seed, 90.0 + seed, took=70 + seed) for seed in range(3)]
    theirs = [made("random", seed, 80.0 + seed, took=50) for seed in range(3)]
    controls = [made("full", seed, 89.0 + seed, steps=70 + seed) for seed in range(3)]
    controls += [made("full", seed, 85.0 + seed, steps=50) for seed in range(3)]
    assert compare([*ours, made("full", 0, 1.0, steps=70, lr=0.7)]).rows[0].same_cost is None  # not like it
    rows = {row.label: row for row in compare(full + ours + theirs + controls).rows}
    assert set(rows) == {"full", "infobatch", "random", "full, cost of infobatch", "full, cost of random"}
    assert rows["full, cost of infobatch"].n == 3
    ahead = rows["infobatch"].same_cost
    behind = rows["random"].same_cost
    assert ahead is not None
    assert ahead.mean == pytest.approx(1.0)
    assert behind is not None
    assert behind.mean == pytest.approx(-5.0)
    assert rows["full"].same_cost is None
    near = [made("infobatch", 0, 1.0, took=100), made("random", 0, 1.0, took=101), made("full", 0, 1.0, steps=100)]
    assert [row.same_cost is not None for row in compare(near).rows] == [True, False, True]  # near enough
    far = [made("infobatch", 0, 1.0, took=100), made("random", 0, 1.0, took=103), made("full", 0, 1.0, steps=100)]
    assert [row.same_cost is not None for row in compare(far).rows] == [True, False, False]


def test_of_two_rates_a_method_is_held_against_the_one_that_did_better() -> None:
    full, ours = many("full", [90.0] * 3), [made("infobatch", seed, 88.0 + seed, took=70) for seed in range(3)]
    plain = [made("full", seed, 85.0 + seed, steps=70) for seed in range(3)]
    grown = [made("full", seed, 87.0 + seed, steps=70, compensate="lr") for seed in range(3)]
    found = compare(full + ours + plain + grown)
    rows = {row.label: row for row in found.rows}
    assert set(rows) == {"full", "infobatch", "full, cost of infobatch", "full+lr, cost of infobatch"}
    assert rows["infobatch"].same_cost == differing([1.0] * 3)
    assert [row.n for row in found.rows] == [3] * 4
    assert "full+lr" in found.rates
    assert not any("full+lr" in note for note in found.notes)  # how it is done, and nothing to beware of
    worse = [made("full", seed, 60.0, steps=70, compensate="lr") for seed in range(3)]
    assert row_of(full + ours + plain + worse, "infobatch").same_cost == differing([3.0] * 3)
    some = compare(full + ours + plain + grown[:1])
    assert {row.label: row.same_cost for row in some.rows}["infobatch"] == differing([3.0] * 3)  # all seeds before one
    assert compare(full + ours + plain).rates == ""


def test_controls_keep_their_methods_where_numbers_of_steps_coincide() -> None:
    runs = []
    for method, counts in (("infobatch", (254, 256, 250)), ("random", (255, 254, 256))):
        for seed, steps in enumerate(counts):
            runs += [made(method, seed, 90.0, took=steps), made("full", seed, 89.0, steps=steps)]
    rows = {row.label: row.n for row in compare(runs).rows}
    assert rows == {"infobatch": 3, "random": 3, "full, cost of infobatch": 3, "full, cost of random": 3}


def test_full_data_with_a_round_number_of_steps_stands_beside_all_that_took_about_as_many() -> None:
    ours = [made("infobatch", seed, 90.0 + seed, took=1000 + (5, -8, 0)[seed]) for seed in range(3)]
    theirs = [made("random", seed, 80.0 + seed, took=1000 - (9, 2, 7)[seed]) for seed in range(3)]
    others = [made("saving", seed, 70.0 + seed, took=970) for seed in range(3)]
    controls = [made("full", seed, 85.0 + seed, steps=1000) for seed in range(3)]
    rows = {row.label: row for row in compare([*ours, *theirs, *others, *controls]).rows}
    assert set(rows) == {"infobatch", "random", "saving", "full, 1000 steps"}
    assert rows["full, 1000 steps"].n == 3
    apart = {name: row.same_cost.mean if row.same_cost else None for name, row in rows.items()}
    assert apart == {"infobatch": 5.0, "random": -5.0, "saving": None, "full, 1000 steps": None}


def test_two_methods_may_have_the_control_of_a_seed_in_common() -> None:
    """In one seed both took 70 steps: each row has all its seeds. Where they always do, one row is enough."""
    ours = [made("infobatch", seed, 90.0 + seed, took=(70, 71, 72)[seed]) for seed in range(3)]
    theirs = [made("random", seed, 80.0 + seed, took=(70, 73, 74)[seed]) for seed in range(3)]
    pairs = {(run.settings.seed, run.end["steps"]) for run in ours + theirs}  # type: ignore[index]
    controls = [made("full", seed, 85.0, steps=steps) for seed, steps in sorted(pairs)]
    rows = {row.label: row for row in compare([*ours, *theirs, *controls]).rows}
    assert {name: row.n for name, row in rows.items() if "cost of" in name} == {
        "full, cost of infobatch": 3,
        "full, cost of random": 3,
    }
    twins = [made("tiers", seed, 70.0, took=(70, 71, 72)[seed]) for seed in range(3)]
    rows = {row.label: row for row in compare([*ours, *twins, *controls]).rows}
    assert "full, cost of infobatch" in rows
    assert "full, cost of tiers" not in rows
    assert rows["tiers"].same_cost == differing([-15.0] * 3)


def test_order_is_that_of_the_first_seed_however_runs_come() -> None:
    runs = []
    for seed in (1, 0):
        for at, method in enumerate(("random", "infobatch", "full") if seed else ("full", "random", "infobatch")):
            time = f"2026-01-0{1 + seed}T00:00:0{at}Z"
            runs.append(made(method, seed, 90.0, took={"random": 50, "infobatch": 70}.get(method, 100), time=time))
        runs += [made("full", seed, 89.0, steps=steps, time=f"2026-01-0{1 + seed}T00:01:00Z") for steps in (70, 50)]
    runs.append(made("full", 0, 89.0, steps=7))
    order = ["full", "random", "full, cost of random", "infobatch", "full, cost of infobatch", "full, 7 steps"]
    assert list(group(runs)) == order
    random.Random(0).shuffle(runs)
    assert [row.label for row in compare(runs).rows] == order


def test_rate_by_rate_however_they_were_begun() -> None:
    rates = ("0.2", "0.05", "0.1")
    runs = [
        made(method, 0, 90.0, lr=float(rate), time=f"2026-01-0{day}")
        for day, rate in enumerate(rates, 1)
        for method in ("random", "full")
    ]
    assert list(group(runs)) == [f"{method} · lr={rate}" for rate in sorted(rates) for method in ("full", "random")]


def test_ideas_are_held_against_full_data_with_the_same_ideas_else_with_none() -> None:
    idea, other = "average", "recalibrate"
    ours = many("infobatch", [80.0, 81.0, 82.0], ideas=idea, took=70)
    theirs = many("full", [79.0, 80.0, 81.5], ideas=idea)
    rows = {row.label: row for row in compare(ours + theirs).rows}
    assert rows[f"full {idea}"].verdict.kind == "baseline"
    assert rows[f"infobatch {idea}"].difference == differing([1.0, 1.0, 0.5])

    plain = many("full", [90.0, 91.0, 92.0])
    rows = {row.label: row for row in compare(ours + theirs + plain + many("random", [90.0] * 3, ideas=other)).rows}
    assert list(rows)[:2] == ["full", f"full {idea}"]
    assert rows["full"].verdict.kind == "baseline"
    assert rows[f"infobatch {idea}"].difference == differing([1.0, 1.0, 0.5])
    assert rows[f"full {idea}"].difference == differing([-11.0, -11.0, -10.5])
    assert rows[f"random {other}"].difference == differing([0.0, -1.0, -2.0])

    controls = many("full", [70.0] * 3, steps=70, ideas=idea) + many("full", [60.0] * 3, steps=70)
    rows = {row.label: row for row in compare(ours + plain + controls).rows}
    same = rows[f"infobatch {idea}"].same_cost
    assert same is not None
    assert same.mean == pytest.approx(11.0)


def test_all_may_be_held_against_one_label_whatever_its_settings() -> None:
    runs = many("full", [90.0, 91.0, 92.0], lr=0.1) + many("infobatch", [90.5, 91.0, 92.0], lr=0.1, saved=0.3)
    runs += many("full", [80.0, 81.0, 82.5], lr=0.2)
    found = compare(runs, against="infobatch · lr=0.1")
    rows = {row.label: row for row in found.rows}
    assert rows["infobatch · lr=0.1"].verdict.kind == "baseline"
    assert rows["full · lr=0.1"].verdict.kind != "baseline"
    expected = stats.ttest_rel([80.0, 81.0, 82.5], [90.5, 91.0, 92.0]).confidence_interval(0.95)
    difference = rows["full · lr=0.2"].difference
    assert difference is not None
    assert (difference.low, difference.high) == pytest.approx((expected.low, expected.high))
    assert [row.saved for row in found.rows] == [row.saved for row in compare(runs).rows]  # of full data, as ever
    assert any(note.endswith("All are compared with infobatch · lr=0.1.") for note in found.notes)
    assert any("only with full data" in note for note in compare(runs).notes)
    same = many("full", [90.0] * 4) + many("infobatch", [90.0] * 4) + many("tiers", [90.0, 90.1, 90.1, 90.0])
    assert row_of(same, "tiers", against="infobatch").verdict.text == "no worse within 0.3 points at 95 %"
    assert row_of(same, "tiers").verdict.text == "lossless within 0.3 points at 95 %"
    with pytest.raises(InputError, match="Did you mean 'infobatch'"):
        compare(same, against="infobach")


def test_what_all_are_held_against_must_not_have_gone_wrong() -> None:
    runs = many("full", [90.0, 91.0, 92.0, 93.0, 94.0]) + many("infobatch", [90.1, 91.0, 92.0, 93.0, 94.1])
    runs += many("random", [90.0, 91.0, 92.0, 93.0, math.nan])
    expected = "no verdict: 1 of 5 runs of random ended without a finite metric"
    assert row_of(runs, "infobatch", against="random").verdict.text == expected
    gone = [*runs[1:5], made("full", 0, math.nan), *runs[5:10]]
    expected = "no verdict: 1 of 5 runs of full data ended without a finite metric"
    assert row_of(gone, "infobatch").verdict.text == expected
    begun = [*runs[:5], *many("ucb", [0.0] * 3, finished=False)]
    assert row_of(begun, "full", against="ucb").verdict.text == "no verdict: no run of ucb has finished"


def test_the_order_of_records_changes_nothing() -> None:
    runs = [made("full", seed, 90.0 + seed, lr=lr, name=f"{lr}-{seed}") for lr in (0.1, 0.2) for seed in (0, 1)]
    runs += many("infobatch", [90.0, 91.0], lr=0.2)
    assert compare(runs) == compare(runs[::-1])


def test_a_named_set_without_a_source_is_the_same_in_any_folder() -> None:
    runs = many("full", [90.0, 91.0], task="cifar100", data="/here")
    runs += many("infobatch", [90.0, 91.0], task="cifar100", data="/there")
    assert [row.label for row in compare(runs).rows] == ["full", "infobatch"]
    assert not [note for note in compare(runs).notes if "differ" in note]
    own = [*many("full", [90.0], task="images", data="/here"), *many("full", [90.0], task="images", data="/there")]
    assert len(compare(own).rows) == 2


def test_saving_is_against_the_full_run_and_seconds_are_without_setup() -> None:
    full, control = made("full", 0, 90.0), made("full", 0, 89.0, steps=50)
    assert full.end is not None
    assert control.end is not None
    full.end.update({"samples": 1000, "full_samples": 1000, "seconds": {"total": 30.0, "setup": 20.0}})
    control.end.update({"samples": 600, "full_samples": 600, "seconds": {"total": 6.0}})
    rows = {row.label: row for row in compare([control, full]).rows}
    assert list(rows) == ["full", "full, 50 steps"]
    assert (rows["full"].saved, rows["full"].seconds) == (0.0, 10.0)
    assert (rows["full, 50 steps"].saved, rows["full, 50 steps"].seconds) == (0.4, 6.0)
    again = made("full", 1, 90.0, seconds=13.0)
    assert compare([full, again]).rows[0].seconds_std == pytest.approx(statistics.stdev([10.0, 13.0]))
    assert compare([full]).rows[0].seconds_std is None
    assert compare([control]).rows[0].saved == 0.0  # alone, it is held against its own plan


def test_plain_is_json() -> None:
    found = compare(many("full", [90.0, 91.0]) + many("infobatch", [90.0, 91.0]))
    again = json.loads(json.dumps(found.plain(), allow_nan=False))
    assert again["rows"][1]["verdict"]["kind"] == found.rows[1].verdict.kind


@pytest.mark.parametrize("options", [{"margin": 0}, {"margin": math.nan}, {"level": 1.0}, {"level": 95}])
def test_bad_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="expected"):
        compare(many("full", [1.0]), **options)
    with pytest.raises(InputError, match="runs to compare"):
        compare([])


def test_full_data_with_as_many_steps_is_beside_all_seeds_or_none() -> None:
    """By what a method takes on average: seeds near it by chance would be a choice by outcome."""
    runs = many("full", [90.0, 91.0, 92.0]) + many("full", [89.0, 90.0, 91.0], steps=100)
    for took, n in (([95, 100, 105], 3), ([101, 106, 108], None)):
        pruned = [made("random", seed, 90.0, took=steps) for seed, steps in enumerate(took)]
        same = row_of([*runs, *pruned], "random").same_cost
        assert (same and same.n) == n


def test_looks_may_be_noted_beside_records(tmp_path: Path) -> None:
    kept = [tmp_path / "one.jsonl", tmp_path / "other.jsonl"]
    assert looks_beside(kept) is None
    (tmp_path / "looks.json").write_text('{"one.jsonl": [3]}')
    assert looks_beside(kept) == (3,)
    assert looks_beside(kept[1:]) is None
    for wrong in ("[3]", '{"one.jsonl": 3}', "{"):
        (tmp_path / "looks.json").write_text(wrong)
        with pytest.raises(StateError, match=r"looks\.json"):
            looks_beside(kept)


def test_runs_that_shared_a_machine_are_no_figures_of_speed() -> None:
    runs = many("full", [90.0, 91.0])
    assert not compare(runs).notes
    runs[1].start["environment"] = {"at_a_time": 3}
    (note,) = compare(runs).notes
    assert "3 runs" in note
    assert "seconds" in note


def test_controls_get_no_verdict() -> None:
    runs = many("full", [90.0, 91.0, 92.0]) + many("full", [80.0, 81.0, 82.1], steps=70)
    runs += many("random:ratio=0.4", [80.0, 81.0, 82.1])
    alone = {row.label: row.verdict.kind for row in compare(runs).rows}
    assert alone == {"full": "baseline", "random:ratio=0.4": "worse", "full, 70 steps": "control"}
    rows = {row.label: row for row in compare([*runs, *many("infobatch", [90.0, 91.0, 92.1])]).rows}
    kinds = {name: row.verdict.kind for name, row in rows.items()}
    assert (kinds["random:ratio=0.4"], kinds["full, 70 steps"], kinds["infobatch"]) == (
        "control",
        "control",
        "lossless",
    )
    assert rows["random:ratio=0.4"].difference is not None  # the numbers stay
    held = {row.label: row.verdict.kind for row in compare(runs, against="random:ratio=0.4").rows}
    assert held["full"] == "better"  # the user asked for just this


def test_time_is_compared_over_common_seeds_on_equal_machines_only() -> None:
    full = many("full", [90.0, 91.0], seconds=10.0)
    ours = [*many("infobatch", [90.0, 91.0], seconds=7.0), made("infobatch", 5, 90.0, seconds=1000.0)]
    assert row_of(full + ours, "infobatch").time_saved == pytest.approx(0.3)
    assert row_of(full + ours, "full").time_saved == 0.0
    assert row_of(full + many("infobatch", [90.0, 91.0], threads=2), "infobatch").time_saved is None
    ours[0].start["environment"] = {"at_a_time": 2}
    assert row_of(full + ours, "infobatch").time_saved is None
    other = many("infobatch", [90.0, 91.0], seconds=7.0)
    other[0].start["environment"] = {"gpu": "another"}
    assert row_of(full + other, "infobatch").time_saved is None
    assert row_of(ours, "infobatch").time_saved is None
