"""The page as text: its parts, what a hostile name cannot do, and how it is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from facts import CLASSES, attacked, facts, made, run, spoiled
from reading import Reader, drawing, parsed, section, table

from infobatch import report
from infobatch.errors import InputError
from infobatch.lab.compare.answer import answers_of
from infobatch.lab.compare.comparison import compare
from infobatch.lab.compare.naming import name_among
from infobatch.lab.runs.records import Run
from infobatch.report import series

SMALL: dict[str, Any] = {"epochs": 6, "size": 150}
SHORT = facts("infobatch", **SMALL)


@pytest.fixture
def page(drawn: str) -> str:
    return drawn


def of(runs: list[Run], method: str) -> list[Run]:
    return [one for one in runs if one.label == method]


def ends(runs: list[Run], method: str) -> list[dict[str, Any]]:
    return [one.end for one in of(runs, method) if one.end is not None]


def test_sections_are_all_there(page: str) -> None:
    keys = {attributes.get("id") for attributes in parsed(page).all("section")}
    assert keys == {
        "answer", "verdict", "cost", "curves", "pruning", "losses", "time", "weighting", "classes", "samples",
        "settings", "environment", "runs",
    }  # fmt: skip


def answers(page: str) -> list[str]:
    return [Reader(text).text for text in re.findall("<li>(.*?)</li>", section(page, "answer"))]


def test_the_page_starts_with_the_answer(runs: list[Run], page: str) -> None:
    """One text per method, the same as on the terminal, before anything else; controls get none."""
    assert parsed(page).all("section")[0]["id"] == "answer"
    assert answers(page) == list(answers_of(compare(runs)))
    (text,) = answers(page)
    saved = np.mean([end["saved"] for end in ends(runs, "infobatch")])
    assert text.startswith(f"InfoBatch used {100 * saved:.0f} % fewer samples")


@pytest.mark.usefixtures("undrawn")
def test_many_methods_are_all_answered_for() -> None:
    methods = ("full", *(f"infobatch:ratio=0.{place}" for place in range(1, 9)))
    runs = [run(method, **SMALL) for method in methods]
    assert answers(report.html(runs)) == list(answers_of(compare(runs)))
    assert len(answers_of(compare(runs))) == 8


@pytest.mark.usefixtures("undrawn")
def test_names_in_answers_are_escaped() -> None:
    both = [facts(method, **SMALL) for method in ("full", "infobatch")]
    for lines in both:
        lines[0]["metric"] = "<b>accuracy</b>, %"
    page = report.html([made(lines) for lines in both])
    assert "&lt;b&gt;" in section(page, "answer")
    assert "<b>" not in section(page, "answer")


@pytest.mark.usefixtures("undrawn")
def test_without_a_method_there_is_no_answer() -> None:
    page = report.html([run("full", **SMALL)])
    assert answers(page) == []
    assert 'class="missing"' in section(page, "answer")


def test_verdicts_are_those_of_the_comparison(runs: list[Run], page: str) -> None:
    shown = section(page, "verdict")
    rows = compare(runs).rows
    found = re.findall(r'<span class="verdict ([\w-]+)">(.*?)</span>', shown)
    assert found == [(row.verdict.kind, row.verdict.text) for row in rows]
    names = [name_among(row.label for row in rows)(row.label) for row in rows]
    assert dict(zip(names, (kind for kind, _ in found), strict=True)) == {
        "full": "baseline", "infobatch": "lossless", "shorter run": "control", "random": "control",
    }  # fmt: skip
    assert "compared with a shorter run: +1.97" in shown


@pytest.mark.usefixtures("undrawn")
def test_the_rate_of_older_shorter_runs_is_named(page: str) -> None:
    assert "full+lr" not in page
    runs = [run("full", **SMALL), run("infobatch", **SMALL), run("full", steps=5, compensate="lr", **SMALL)]
    assert compare(runs).rates in section(report.html(runs), "verdict")


def test_seconds_have_their_spread(runs: list[Run], page: str) -> None:
    times = [end["seconds"]["total"] - end["seconds"]["setup"] for end in ends(runs, "random")]
    text = parsed(page).text
    assert f"{np.mean(times):,.1f} ± {np.std(times, ddof=1):,.1f}" in text


def test_order_does_not_depend_on_that_of_the_records(runs: list[Run], page: str) -> None:
    order = list(dict.fromkeys(row["method"] for row in table(page, "seconds")))
    assert order == ["full", "infobatch", "shorter run", "random"]
    assert list(series.Study.of(reversed(runs)).sets) == order


def test_colours_are_all_variables_and_names_are_unique(page: str) -> None:
    for svg in re.findall(r"<svg viewBox.*?</svg>", page, re.S):
        assert not re.search(r"(fill|stroke|color)\W+#", svg)
    names = [attributes["id"] for _, attributes in parsed(page).found if "id" in attributes]
    assert len(names) == len(set(names))
    used = set(re.findall(r"(?:url\(#|href=\"#)([\w-]+)", page))
    assert used
    assert used <= set(names)


def test_every_drawing_has_words(page: str) -> None:
    reader = parsed(page)
    plots = [attributes for attributes in reader.all("svg") if attributes.get("class") == "plot"]
    assert len(plots) >= 20
    assert all(attributes.get("aria-label") and attributes.get("role") == "img" for attributes in plots)
    assert all(attributes.get("alt") for attributes in reader.all("img"))
    assert [tag for tag, _ in reader.found if tag in ("h1", "title", "main")] == ["title", "h1", "main"]


def test_nothing_is_fetched_and_no_script_may_run(page: str) -> None:
    reader = parsed(page)
    policy = next(one["content"] for one in reader.all("meta") if one.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "script" not in policy
    assert page.index("Content-Security-Policy") < page.index("<style")
    for tag, attributes in reader.found:
        assert tag not in ("script", "link", "iframe", "object", "embed", "base", "form")
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "xlink:href", "action"):
                assert (value or "").startswith(("data:image/png;base64,", "data:text/csv;", "#"))
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


ATTACKS = [
    "<script>alert(1)</script>",
    '$\\frac{$"><img src=x onerror=alert(1)> {{ 7 * 7 }}',
    "</title></svg></style><svg onload=alert(1)>",
]


def test_no_name_can_leave_its_place() -> None:
    page = report.html(attacked(ATTACKS, **SMALL))
    test_nothing_is_fetched_and_no_script_may_run(page)
    assert page.count("</style>") == page.count("</title>") == 1
    text = parsed(page).text
    assert all(text.count(attack) > 50 for attack in ATTACKS)  # shown as they are


def test_what_no_page_can_hold_is_left_out_of_names() -> None:
    odd, plain = "a\x00b\x07\x1b[31m\ufffe\ud800 c\td", "ab[31m c d"
    start, *facts_of_it, samples, end = spoiled(SHORT, odd)
    page = report.html([Run(odd, start, facts_of_it, samples, end)])
    page.encode()  # half of a pair has no bytes
    assert set(re.findall(r"[\x00-\x1f]", page)) <= set("\n\t")
    assert plain in parsed(page).text
    assert [row["class"] for row in table(page, "class-saving")] == ["ab[31m c\td"] * len(CLASSES)
    assert [text.text for text in drawing(page, "class-saving").iter("text")].count(plain) == len(CLASSES)


@pytest.mark.usefixtures("undrawn")
def test_numbers_behind_a_figure_cannot_become_formulas() -> None:
    rows = table(report.html([made(spoiled(SHORT, "=HYPERLINK(1)"))]), "class-saving")
    assert rows[0]["class"] == "'=HYPERLINK(1)"
    assert float(rows[0]["% pruned"]) >= 0


def test_same_runs_same_page_and_nothing_else_changed() -> None:
    few = [run("infobatch", epochs=2, size=50)]
    before = dict(matplotlib.rcParams)
    matplotlib.rcParams["axes.labelsize"] = 30  # what a user has set elsewhere
    first = report.html(few)
    matplotlib.rcParams["axes.labelsize"] = before["axes.labelsize"]
    assert dict(matplotlib.rcParams) == before
    assert first == report.html(few)


@pytest.mark.usefixtures("undrawn")
def test_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [run("full", epochs=1, size=50)]
    path = report.write(few, tmp_path / "new" / "report.html")
    assert path.read_text(encoding="utf-8").endswith("</html>")
    old = path.read_bytes()

    def broken(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        report.write([run("infobatch", epochs=1, size=50)], path)
    assert path.read_bytes() == old
    assert [one.name for one in path.parent.iterdir()] == ["report.html"]


@pytest.mark.usefixtures("undrawn")
def test_bad_targets_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a file to write to.*report\.html"):
        report.write([run("full", epochs=1, size=50)], tmp_path)
    with pytest.raises(InputError, match="runs to compare"):
        report.write([], tmp_path / "x.html")
    for place in ("/proc/x.html", "/dev/full"):
        with pytest.raises(OSError, match=f": '{place}'$"):
            report.write([run("full", epochs=1, size=50)], place)
