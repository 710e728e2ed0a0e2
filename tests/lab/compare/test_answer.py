"""The answer in one sentence: its numbers are those of the runs, and it claims what the verdict does."""

from __future__ import annotations

import re
from typing import Any

import pytest

from infobatch.lab.compare.answer import Facts, answer_of, answers_of, facts_of
from infobatch.lab.compare.comparison import compare
from infobatch.lab.compare.tuning import at_best
from infobatch.lab.compare.verdicts import Difference, judge, of_differences
from infobatch.lab.runs.records import Run
from infobatch.lab.train.settings import Settings


def difference(values: list[float]) -> Difference:
    return Difference(tuple(range(len(values))), *of_differences(values, 0.95))


def facts(values: list[float], **more: Any) -> Facts:
    found = difference(values)
    return Facts(more.pop("method", "infobatch"), found, judge(found, 0.3, 0.95), **more)


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"[-+]?\d+(?:\.\d+)?", text)]


def made(method: str, values: list[float], seconds: float = 100.0, saved: float = 0.0, **changes: Any) -> list[Run]:
    runs = []
    metric, took = changes.pop("metric", "accuracy, %"), changes.pop("took", 100)
    for seed, value in enumerate(values):
        start = {"settings": Settings(method=method, seed=seed, **changes).plain(), "metric": metric}
        end = {"metric": value, "saved": saved, "steps": took, "seconds": {"total": seconds}}
        runs.append(Run(f"{method}-{seed}-{changes}", start, end=end))
    return runs


FULL = [90.0, 95.0, 92.0]


def test_unclear_names_the_loss_that_cannot_be_excluded() -> None:
    (text,) = answers_of(compare(made("full", FULL) + made("infobatch", [90.5, 94.2, 92.0], seconds=73.0, saved=0.35)))
    found = difference([0.5, -0.8, 0.0])
    assert found.low is not None
    assert found.high is not None
    low, high = round(found.low, 2), round(found.high, 2)
    assert numbers(text) == [35, 27, 0.1, 95, low, high, 3, -low]
    assert "3 seeds cannot exclude" in text
    start = "InfoBatch used 35 % fewer samples and 27 % less time than full data, and was 0.10 points less accurate ("
    assert text.startswith(start)


@pytest.mark.parametrize(
    ("values", "word", "last"),
    [
        ([2.0, 2.2, 1.8, 2.1], "gain", None),
        ([-2.0, -2.2, -1.8, -2.1], "the loss", None),
        ([0.02, -0.02, 0.05, -0.05], "can be excluded", 0.3),
        ([0.5, 0.51], "two seeds are too few", None),  # two seeds never decide
    ],
)
def test_claims_are_those_of_the_verdict(values: list[float], word: str, last: float | None) -> None:
    text = answer_of(facts(values, saved=0.3, time_saved=0.2))
    assert word in text
    assert last is None or numbers(text)[-1] == pytest.approx(last, abs=0.06)
    assert "cannot exclude" not in text


@pytest.mark.parametrize("values", [[-0.4], [0.0, 0.0]])
def test_without_an_interval_the_sentence_says_so(values: list[float]) -> None:
    text = answer_of(facts(values, saved=0.3))
    assert "cannot tell whether that is chance" in text
    assert "95 %" not in text
    assert ("one seed" in text) is (len(values) == 1)


@pytest.mark.parametrize(
    ("saved", "time_saved", "expected"),
    [
        (0.35, 0.27, "35 % fewer samples and 27 % less time than full data"),
        (0.35, None, "35 % fewer samples than full data"),
        (None, -0.1, "10 % more time than full data"),
        (0.0, 0.001, "as many samples and as much time as full data"),
        (0.35, 0.0, "35 % fewer samples than full data and as much time"),
        (0.0, -0.05, "as many samples as full data and 5 % more time"),
        (-0.2, -0.05, "20 % more samples and 5 % more time than full data"),
    ],
)
def test_what_was_saved(saved: float | None, time_saved: float | None, expected: str) -> None:
    text = answer_of(facts([0.1, 0.2, 0.0], saved=saved, time_saved=time_saved))
    assert f"used {expected}{', and' if ' and ' in expected else ' and'} was 0.10 points more accurate" in text


def test_unknown_costs_are_not_claimed() -> None:
    assert "%" not in answer_of(facts([0.1, 0.2, 0.0])).partition(" (95 %")[0]


def test_another_metric_has_its_own_name() -> None:
    runs = made("full", FULL, metric="mean IoU") + made("infobatch", FULL, metric="mean IoU", saved=0.3)
    (text,) = answers_of(compare(runs))
    assert "and its mean IoU was as high; 3 seeds" in text
    assert "accuracy" not in text


def test_one_answer_per_method_and_none_for_controls() -> None:
    runs = made("full", FULL) + made("infobatch", FULL, took=70) + made("tiers:ratio=0.2", FULL)
    runs += made("random", FULL) + made("full", [88.0, 93.0, 90.5], steps=70)
    assert [one.method for one in facts_of(compare(runs))] == ["infobatch", "tiers:ratio=0.2"]
    ours, theirs = answers_of(compare(runs))
    assert "shorter run" not in theirs
    short = ours.partition("shorter run")[2]
    assert numbers(short)[0] == pytest.approx(1.83)
    assert "less accurate" in short
    assert "seeds are enough to tell it from InfoBatch" in short


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([-1.0, -1.2, -0.8], ("was 1.10 points more accurate", "and 3 seeds are enough to tell it from InfoBatch")),
        ([-1.0, 1.2, -0.8], ("was 0.30 points more accurate", "3 seeds cannot tell whether it or InfoBatch is better")),
        ([0.1, 0.3, -0.1], ("had the same accuracy", "3 seeds cannot tell whether it or InfoBatch is better")),
        ([0.5], ("it was 0.50 points more accurate than", "one seed cannot tell which of the two is better")),
        # two seeds never decide
        ([0.5, 0.51], ("it was 0.51 points more accurate than", "two seeds cannot tell which of the two is better")),
    ],
)
def test_compared_with_a_shorter_run(values: list[float], words: tuple[str, str]) -> None:
    text = answer_of(facts([0.1, 0.2, 0.0], shorter_run=difference(values)))
    assert all(word in text for word in words)
    assert text.count("shorter run") == 1
    assert text.count(". ") == 0  # one sentence


def test_no_answer_where_there_is_none() -> None:
    (text,) = answers_of(compare(made("full", FULL) + made("infobatch", [90.0, 95.0, float("nan")], saved=0.3)))
    assert "unknown" in text
    assert "1 of 3" in text
    (text,) = answers_of(compare(made("infobatch", FULL)))
    assert "unknown" in text
    assert answers_of(compare(made("full", FULL))) == ()


def test_against_another_row() -> None:
    runs = made("full", FULL) + made("infobatch", FULL) + made("tiers", [91.0, 96.0, 93.1], saved=0.3)
    answers = {one.method: answer_of(one) for one in facts_of(compare(runs, against="infobatch"))}
    assert set(answers) == {"full", "tiers"}
    assert "30 % fewer samples" in answers["tiers"]
    assert "more accurate than infobatch" in answers["tiers"]


def test_with_several_rates_the_answer_is_about_the_best_ones() -> None:
    runs = [
        run
        for lr, full, ours in ((0.1, 80.0, 90.0), (0.2, 90.0, 85.0))
        for run in made("full", [full, full + 1, full + 2], lr=lr)
        + made("infobatch", [ours, ours + 1.1, ours + 2], lr=lr)
    ]
    found = compare(runs)
    (text,) = answers_of(found, at_best(runs, found))
    assert "(0.1)" in text
    assert "was 0.03 points more accurate" in text
    assert len(answers_of(found)) == 2


def test_wider_intervals_after_more_looks_are_named() -> None:
    runs = made("full", FULL) + made("infobatch", [90.5, 94.2, 92.0])
    assert "(98.33 % interval" in answers_of(compare(runs, looks=(2,)))[0]


def test_short_runs_do_not_measure_time() -> None:
    runs = made("full", FULL, seconds=2.0) + made("infobatch", FULL, seconds=1.0, saved=0.3)
    (text,) = answers_of(compare(runs))
    assert text.startswith("InfoBatch used 30 % fewer samples than full data and had the same accuracy")
    assert "time" not in text


def test_the_answer_has_the_digits_of_the_table() -> None:
    runs = made("full", FULL) + made("infobatch", [90.1, 94.8, 92.0], took=70)
    found = compare(runs + made("full", [88.0, 93.5, 90.5], steps=70))
    differences = {row.label: row.difference for row in found.rows}
    (text,) = answers_of(found)
    for label in ("infobatch", "full, cost of infobatch"):
        difference = differences[label]
        assert difference is not None
        assert f" {abs(difference.mean):.2f} points less accurate" in text


def test_against_a_shorter_run_it_is_named_once() -> None:
    runs = made("full", FULL) + made("infobatch", FULL, took=70) + made("full", [88.0, 93.0, 90.5], steps=70)
    (text,) = (answer_of(one) for one in facts_of(compare(runs, against="shorter run")) if one.method == "infobatch")
    assert "more accurate than shorter run (" in text
    assert text.count("shorter run") == 1
