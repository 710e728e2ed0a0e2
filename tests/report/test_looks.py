"""What the page says about methods that look at batches: compute net of looking, and what they looked with."""

from __future__ import annotations

import re
from typing import Any

import pytest
from facts import facts, made, run
from reading import Reader, section, table

from infobatch import report
from infobatch.lab.compare.comparison import compare
from infobatch.lab.runs.facts import cost_of
from infobatch.lab.runs.records import Run

SMALL: dict[str, Any] = {"epochs": 6, "size": 150}
LOOKING = 0.08
LOOK = {"look": "proxy", "net": "resnet8", "fingerprint": "75,290 parameters, sha256:0123456789ab", "every": 4}


def sieved(seed: int, method: str = "sieve.hardest", looking: float = LOOKING, look: Any = LOOK) -> Run:
    """A run of a sieve, as the lab records it."""
    lines = facts(method, seed, **SMALL)
    lines[0]["sieve"] = look
    end = lines[-1]
    end |= cost_of(end["samples"], end["full_samples"], 12, looking)
    for line in lines:
        if line["kind"] == "epoch":
            line["noise"] = None
    return made(lines)


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    found = []
    for seed in range(3):
        ours = sieved(seed)
        assert ours.end is not None
        steps = ours.end["same_cost_steps"]
        found += [
            run("full", seed, **SMALL),
            ours,
            run("full", seed, steps=steps, **SMALL),
            run("random", seed, **SMALL),
        ]
    return found


@pytest.fixture(scope="module")
def page(runs: list[Run]) -> str:
    return report.html(runs)


def cells(page: str, label: str) -> dict[str, str]:
    """A row of the table of verdicts, by the names of its columns."""
    (row,) = (
        text
        for text in re.findall(r"<tr.*?</tr>", section(page, "verdict"), re.S)
        if re.search(rf"</svg>\s*{re.escape(label)}\s*<", text)
    )
    return {name: Reader(text).text for name, text in re.findall(r'data-name="([^"]*)">(.*?)</td>', row, re.S)}


def test_saved_is_compute_and_names_the_samples(runs: list[Run], page: str) -> None:
    row = next(row for row in compare(runs).rows if row.label == "sieve.hardest")
    assert row.saved is not None
    assert row.compute_saved == pytest.approx(row.saved - LOOKING)
    assert cells(page, "sieve.hardest")["saved"] == f"{100 * row.compute_saved:.1f} % samples {100 * row.saved:.1f} %"
    assert "samples" not in cells(page, "random")["saved"]
    assert "net of looking" in section(page, "verdict")
    listed = re.search(r"<td>sieve.hardest</td>.*?</tr>", section(page, "runs"), re.S)
    assert listed is not None
    assert runs[1].end is not None
    assert f"{100 * (runs[1].end['saved'] - LOOKING):.1f} %" in listed[0]


def test_accuracy_is_drawn_against_compute(runs: list[Run], page: str) -> None:
    rows = {row.label: row for row in compare(runs).rows}
    points = {row["method"]: row for row in table(page, "frontier-compute")}
    for label, name in (("sieve.hardest", "sieve.hardest"), ("full, cost of sieve.hardest", "shorter run")):
        compute = rows[label].compute
        assert compute is not None
        assert float(points[name]["compute, % of full data"]) == pytest.approx(100 * compute, rel=1e-4)
    assert float(points["full"]["compute, % of full data"]) == 100
    assert "looking" in section(page, "cost")


def test_savings_have_a_bar_for_compute_where_a_method_looks(runs: list[Run], page: str) -> None:
    row = next(row for row in table(page, "savings") if row["method"] == "sieve.hardest")
    assert float(row["samples saved, %"]) - float(row["compute saved, %"]) == pytest.approx(100 * LOOKING, abs=1e-3)
    plain = report.html([one for one in runs if one.label != "sieve.hardest" and not one.settings.steps])
    assert "compute saved, %" not in table(plain, "savings")[0]
    assert "looking" not in section(plain, "verdict")
    assert "look" not in Reader(section(plain, "settings")).text.split()


def test_the_answer_is_about_compute(page: str) -> None:
    text = Reader(section(page, "answer")).text
    assert "less compute than full data" in text
    assert "shorter run that cost as much" in text


def test_the_page_says_what_was_looked_with(page: str) -> None:
    text = Reader(section(page, "settings")).text
    assert "proxy resnet8 (75,290 parameters), trained on one batch in 4" in text


@pytest.mark.usefixtures("undrawn")
def test_other_looks_have_names_too() -> None:
    own = report.html([run("full", **SMALL), sieved(0, look={"look": "own"})])
    assert "the model itself" in Reader(section(own, "settings")).text
    none = report.html([run("full", **SMALL), sieved(0, method="sieve.random_rows", looking=0.0, look={"look": None})])
    assert "look" not in Reader(section(none, "settings")).text.split()


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("look", ["<i>x</i>", ["proxy"], {"look": ["<i>"]}, {"look": "proxy", "net": "<i>x</i>"}, 7])
def test_a_record_may_say_anything_about_its_look(look: Any) -> None:
    page = report.html([run("full", **SMALL), sieved(0, look=look)])
    assert "<i>" not in page


def test_the_noise_of_plans_is_not_drawn_for_sieves(page: str) -> None:
    assert {row["method"] for row in table(page, "noise")} == {"random"}


@pytest.mark.usefixtures("undrawn")
def test_the_proxy_of_a_static_method_is_not_in_its_compute() -> None:
    said = "proxy of a static method"
    assert said in section(report.html([run("full", **SMALL), run("static.el2n", **SMALL)]), "cost")
    assert said not in section(report.html([run("full", **SMALL), sieved(0)]), "cost")
