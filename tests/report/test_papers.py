"""The page beside the papers: its numbers against the outcomes, its links against the disk, hostile names."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from browser import Browser, program
from reading import Reader, drawing, section, table

from infobatch import report
from infobatch.cli import main
from infobatch.errors import InputError
from infobatch.lab.compare.comparison import compare
from infobatch.lab.compare.naming import describe
from infobatch.lab.papers.gathered import Evidence, Measurement, evidence
from infobatch.lab.papers.judge import Outcome, listing, outcome
from infobatch.lab.papers.recipe import Recipe, load
from infobatch.lab.runs import records
from infobatch.lab.train.settings import Settings

ROOT = Path(__file__).parents[2]
NONE = "\N{EN DASH}"
NAMES = ("table1", "table6", "early_table4", "table10", "table8", "table11")
LAST = {"ideas": "whole_last"}  # as in the papers
RULE = "infobatch+loss whole_last"
FULL, PRUNED = "CIFAR-10, R-18, full", "CIFAR-10, R-18, InfoBatch"


def trained(settings: Settings | None, *metrics: float, saved: float = 0.0, hours: float = 1.0) -> Iterator[Any]:
    """The facts of a run for each seed."""
    assert settings is not None
    for seed, metric in enumerate(metrics):
        about = {"format": 2, "run": f"{settings.method}-{seed}", "time": "2026", "metric": "accuracy, %"}
        yield {"kind": "start", **about, "settings": settings.but(seed=seed).plain()}
        yield {"kind": "end", "metric": metric, "saved": saved, "seconds": {"total": 3600 * hours}, "steps": 9}


def cell(recipe: str, name: str) -> Settings | None:
    return load(recipe).cell(name).settings


def facts() -> Iterator[Any]:
    """Cells held against another by points and by ratio, what no cell asks for, and a run that went wrong."""
    yield from trained(cell("table6", FULL), 95.5, 95.7, 95.6)
    yield from trained(cell("table6", PRUNED), 95.2, 95.5, 95.3, saved=0.4)
    control = cell("table1", "Control: full at the rate of InfoBatch, CIFAR-100")
    assert control is not None
    yield from trained(control, 78.5, 78.6, 78.4)
    yield from trained(control.but(**LAST, method="infobatch"), 78.3, 78.1, 78.3, saved=0.33)
    yield from trained(control.but(**LAST, method="infobatch", compensate="lr"), 78.8, 78.7, 78.8, saved=0.32)
    yield from trained(cell("early_table4", "Full, time"), 79.0, 79.1, hours=2.0)
    yield from trained(cell("early_table4", "Below the mean, time"), 79.0, 79.2, saved=0.33, hours=1.4)
    yield from trained(cell("table6", "CIFAR-10, R-50, full"), math.nan, 95.0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an awkward name, and records in it."""
    folder = tmp_path_factory.mktemp("a #folder with ü%20")
    (folder / "own #%20 & kept").mkdir()
    (folder / "own #%20 & kept" / "all.jsonl").write_text("".join(map(records.line, facts())))
    return folder


@pytest.fixture(scope="module")
def known(place: Path) -> Evidence:
    rows = {"numpy mean, 1.28M": 1.0, "numpy percentile, 1.28M": 20.0, "numpy sort, 1.28M": 2.0}
    measured = Measurement("infobatch.lab.papers.microbench:operations", rows, {"cpu": "a CPU"}, "2026")
    return Evidence(tuple(records.read_many(place)), (measured,))


def judged(known: Evidence, *wanted: Recipe) -> list[Outcome]:
    return [outcome(recipe, known.runs, known.measurements) for recipe in wanted or map(load, NAMES)]


@pytest.fixture(scope="module")
def found(known: Evidence) -> list[Outcome]:
    return judged(known)


@pytest.fixture(scope="module")
def target(place: Path) -> Path:
    return place / "pages" / "papers.html"


@pytest.fixture(scope="module")
def page(found: list[Outcome], known: Evidence, target: Path) -> str:
    return report.write_papers(found, known, target).read_text(encoding="utf-8")


def rows(html: str) -> dict[str, dict[str, str]]:
    """Of the tables with outcomes: by name, the texts by column."""
    lines = {}
    for line in re.findall(r'<tr>\n(<th scope="row">.*?)</tr>', html, re.S):
        name = Reader(re.split("<small>|</th>", line)[0]).text
        columns = re.findall(r'<td class="[^"]*" data-name="([^"]*)">(.*?)</td>', line, re.S)
        says = re.findall(r'<td class="says">(.*?)</td>', line, re.S)
        lines[name] = {key: Reader(value).text for key, value in [*columns, ("says", says[0])]}
    return lines


def minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")


# ---- numbers ---------------------------------------------------------------------------------------------


def test_numbers_are_those_of_the_outcomes(found: list[Outcome], page: str) -> None:
    kinds = Counter[str]()
    for one in found:
        shown = rows(section(page, one.recipe.name))
        run = [row for row in one.rows if row.status not in ("not run", "waits")]
        assert sorted(shown) == sorted(row.cell.name for row in run)
        for row in run:
            words = shown[row.cell.name]
            assert words["says"] == f"{row.status} {row.why}".strip()
            if row.ours is not None:
                spread = "" if row.std is None else f" ± {row.std:.2g}"
                assert words["ours"] == f"{row.ours:.4g}{spread} n = {row.n}"
            if row.cell.paper is not None:
                assert words["paper"].split(" ± ")[0] == f"{row.cell.paper:g}"
            if row.saved is not None:
                assert words["saved"].startswith(f"{row.saved:.1f} %")
            if row.cell.saved is not None:
                assert words["saved"].endswith(f"paper {row.cell.saved:.1f} %")
            if row.compared is not None and row.cell.compare == "factor":
                assert words["difference"].startswith(f"{row.compared:.3g} times")
                kinds["ratio"] += 1
            elif row.low is not None and row.high is not None and row.compared is not None:
                ours = f"{row.compared:+.2f} {row.low:+.2f} to {row.high:+.2f}"
                theirs = "" if row.wanted is None else f" paper {row.wanted:+.2f}".replace("+0.00", "0.00")
                assert words["difference"] == minus(ours + theirs)
                kinds["points with the paper's" if theirs else "points alone"] += 1
    assert set(kinds) == {"ratio", "points with the paper's", "points alone"}


def test_runs_that_went_wrong_are_told(page: str) -> None:
    words = rows(section(page, "table6"))["CIFAR-10, R-50, full"]
    assert words["says"] == "not reproduced 1 of 2 runs ended without a finite metric"
    assert words["ours"] == NONE


def test_every_status_is_counted(found: list[Outcome], page: str) -> None:
    counts = Counter(row.status for one in found for row in one.rows)
    listed = re.findall(r"<li><b>(\d+)</b><span[^>]*>([^<]*)</span></li>", section(page, "counts"))
    assert {status: int(count) for count, status in listed} == {
        status: counts[status]
        for status in (
            "reproduced", "consistent", "not reproduced", "undecided", "too few seeds", "for comparison", "not run",
            "waits",
        )
    }  # fmt: skip
    assert f"{len(found)} tables and figures, {sum(counts.values())} cells" in Reader(page).text


def test_the_first_table_has_what_was_run_and_nothing_else(found: list[Outcome], page: str) -> None:
    listed = re.findall(r'scope="row">(.*?)</th><td class="n">(.*?)</td><td class="n">(.*?)</td>', section(page, "run"))
    names = [Reader(name.partition(" <small>")[0]).text for name, *_ in listed]
    run = [row.cell.name for one in found for row in one.rows if row.ours is not None or row.why]
    assert sorted(names) == sorted(run)
    assert ("95.6", "95.6 ± 0.1") in [(paper, ours) for _, paper, ours in listed]


def test_what_was_not_run_is_listed_apart(found: list[Outcome], page: str) -> None:
    for one in found:
        left = [row.cell for row in one.rows if row.status in ("not run", "waits")]
        html = section(page, one.recipe.name)
        listed = re.findall(r"<div><dt>(.*?)</dt><dd>(.*?)</dd></div>", html)
        assert [Reader(name).text for name, _ in listed] == [cell.name for cell in left]
        for (_, value), cell in zip(listed, left, strict=True):
            assert cell.paper is None or Reader(value).text.startswith(f"{cell.paper:g}")
        assert html.count("<details><summary>") == len({cell.waits.partition(":")[0] for cell in left}) + bool(
            one.recipe.notes
        )
    assert "2 wait for task ffhq" in section(page, "table8")
    assert "<table>" not in section(page, "table10")
    assert "<table>" not in section(page, "table8")


def test_a_recipe_says_what_it_claims_and_needs(page: str) -> None:
    recipe, text = load("table6"), Reader(section(page, "table6")).text
    for words in (recipe.title, recipe.claim, recipe.place, recipe.data, recipe.hardware, *recipe.notes):
        assert words in text
    assert "about 1400 GPU hours" in text


def test_beyond_the_papers_is_a_comparison(known: Evidence, page: str) -> None:
    shown = rows(section(page, "beyond"))
    own = [run for run in known.runs if run.settings.task == "cifar100" and run.settings.lr == 0.05]
    runs = [run for run in own if run.settings.model == "resnet18"]
    full, rule = compare(runs), {row.label: row.difference for row in compare(runs, against=RULE).rows}
    assert set(shown) == {"full data", "InfoBatch, learning rate grows (older last batch)", describe(RULE)}
    for row in full.rows:
        words = shown[describe(row.label)]
        assert words["says"] == row.verdict.text
        assert words["n"] == "3"
        assert row.mean is not None
        assert words["accuracy, %"].startswith(f"{row.mean:.2f} ± ")
        for key, one in (("difference", row.difference), (f"to {describe(RULE)}", rule[row.label])):
            wanted = NONE if one is None else minus(f"{one.mean:+.2f} {one.low:+.2f} to {one.high:+.2f}")
            assert words[key] == wanted
    assert "onecycle to 0.05" in Reader(section(page, "beyond")).text


# ---- the figure ------------------------------------------------------------------------------------------


def test_differences_are_drawn_where_they_are(found: list[Outcome], page: str) -> None:
    """The numbers are those of the outcome, and all marks lie where one scale puts them."""
    (one,) = (one for one in found if one.recipe.name == "table6")
    drawn = [row for row in one.rows if row.compared is not None]
    numbers = table(page, "differences-1")
    assert [row["cell"] for row in numbers] == [row.cell.name for row in drawn]
    for line, row in zip(numbers, drawn, strict=True):
        for key, value in (("ours", row.compared), ("low", row.low), ("high", row.high), ("paper", row.wanted)):
            assert (float(line[key]) if line[key] else None) == (
                None if value is None else pytest.approx(value, rel=1e-4)
            )
        assert line["outcome"] == row.status
    svg = drawing(page, "differences-1")
    paths = [path.get("d") or "" for path in svg.iter("path") if "stroke-width: 2.4" in (path.get("style") or "")]
    ends = [float(point.split()[0]) for path in paths for point in re.split("[ML]", path)[1:]]
    values = [float(line[key]) for line in numbers for key in ("low", "high")]
    scale = np.polyfit(values, ends, 1)
    assert np.abs(np.polyval(scale, values) - ends).max() < 0.15
    marks = [float(use.get("x") or 0) for use in svg.iter("use") if (use.get("style") or "").count("stroke: var(--")]
    wanted = [float(line[key]) for line in numbers for key in ("ours", "paper") if line[key]]
    where = np.polyval(scale, wanted)
    assert np.abs(np.array(marks)[None] - where[:, None]).min(1).max() < 0.3


def test_what_must_hold_a_line_is_the_tolerance(found: list[Outcome], page: str) -> None:
    tolerance = load("table6").cell(PRUNED).tolerance
    (line,) = (line for line in table(page, "differences-1") if line["cell"] == PRUNED)
    wanted = load("table6").cell(PRUNED).paper - load("table6").cell(FULL).paper  # type: ignore[operator]
    assert float(line["from"]) == pytest.approx(wanted - tolerance)
    assert float(line["to"]) == pytest.approx(wanted + tolerance)
    (line,) = table(page, "differences-0")
    assert (line["expected"], line["from"], line["to"]) == ("lossless", "-0.3", "")


# ---- what is missing -------------------------------------------------------------------------------------


def test_where_nothing_was_run_it_says_so(tmp_path: Path) -> None:
    nothing = Evidence()
    page = report.papers_html(judged(nothing, load("table5"), load("table8")), nothing, tmp_path / "papers.html")
    text = Reader(page).text
    for key in ("run", "differences", "beyond"):
        assert 'class="missing"' in section(page, key)
    assert "<table" not in page
    assert "<svg" not in page
    assert "5 not run" in text


def test_what_could_not_be_read_is_named(tmp_path: Path) -> None:
    known = Evidence(unreadable=("runs/<b>/record.jsonl: whose line 3 is not a JSON object",))
    text = Reader(report.papers_html(judged(known, load("table5")), known, tmp_path / "papers.html")).text
    assert "runs/<b>/record.jsonl: whose line 3 is not a JSON object" in text


def test_a_folder_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(str(tmp_path / "papers.html"))):
        report.write_papers([], Evidence(), tmp_path)


# ---- links and names -------------------------------------------------------------------------------------


def links(page: str) -> list[str]:
    found = [link["href"] for link in Reader(page).all("a")]
    assert all(found)
    return [link for link in found if link]


def resolve(page: str, target: Path) -> list[Path]:
    """The files that the page leads to; what leads inside it must be there."""
    ids = {attributes.get("id") for _, attributes in Reader(page).found}
    outside = []
    for link in links(page):
        way, _, anchor = link.partition("#")
        if not way:
            assert unquote(anchor) in ids, link
        elif not way.startswith("data:text/csv;"):
            assert not re.match(r"[a-z]+:|/", way), link
            outside.append((target.parent / unquote(way)).resolve())
    return outside


def test_every_link_leads_to_a_file(page: str, target: Path, place: Path) -> None:
    found = resolve(page, target)
    assert [path for path in found if not path.is_file()] == []
    recipes = ROOT / "recipes"
    assert {
        place / "own #%20 & kept" / "all.jsonl",
        recipes / "README.md",
        *(recipes / f"{name}.toml" for name in NAMES),
    } == set(found)
    judged = next(link for link in links(page) if "README" in link).partition("#")[2]
    headings = re.findall("^## (.*)$", (recipes / "README.md").read_text(), re.M)
    assert judged in [heading.lower().replace(" ", "-") for heading in headings]


def test_a_run_of_its_own_is_known_by_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "full-seed0" / records.FILE
    path.parent.mkdir()
    path.write_text("".join(map(records.line, trained(cell("table6", FULL), 95.0))))
    known = Evidence((records.read(path),))
    page = report.papers_html(judged(known, load("table6")), known, tmp_path / "papers.html")
    assert '<a href="full-seed0/record.jsonl">full-seed0</a>' in page


ATTACKS = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'> {{ 7 * 7 }}",
    "</title></style></svg>$x_1$%41 \x07",
)


@pytest.mark.parametrize("attack", ATTACKS, ids=["script", "attribute", "end"])
def test_no_name_can_leave_its_place(known: Evidence, tmp_path: Path, attack: str) -> None:
    recipe = load("table6")
    cells = tuple(
        replace(one, name=one.name + attack, against=one.against and one.against + attack, unit=attack, note=attack)
        for one in recipe.cells
    )
    waiting = replace(cells[-1], name=attack, waits=attack, settings=None)
    recipe = replace(
        recipe, name=attack, title=attack, claim=attack, paper=attack, place=attack, data=attack, hardware=attack,
        notes=(attack,), cells=(*cells, waiting),
    )  # fmt: skip
    page = report.papers_html(judged(known, recipe), replace(known, unreadable=(attack,)), tmp_path / "papers.html")
    reader = Reader(page)
    assert {tag for tag, _ in reader.found} & {"script", "img", "link", "iframe", "form"} == set()
    assert page.count("</style>") == page.count("</title>") == 1
    assert not [name for _, attributes in reader.found for name in attributes if name.startswith("on")]
    assert attack.replace(" \x07", "") in reader.text
    assert set(re.findall(r"[\x00-\x1f]", page)) <= set("\n\t")
    resolve(page, tmp_path / "papers.html")
    (policy,) = (one["content"] for one in reader.all("meta") if one.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none';")


def test_a_recipe_without_a_file_here_has_no_link(known: Evidence, tmp_path: Path) -> None:
    recipe = replace(load("table5"), name="javascript:alert(1)")
    page = report.papers_html(judged(known, recipe), known, tmp_path / "papers.html")
    assert "<h2>javascript:alert(1): " in page


def test_the_same_evidence_gives_the_same_page(found: list[Outcome], known: Evidence, page: str, target: Path) -> None:
    assert report.papers_html(found, known, target) == page


# ---- the command, and the page that is kept --------------------------------------------------------------


@pytest.mark.slow
def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs" / "torn").mkdir(parents=True)
    torn = tmp_path / "runs" / "torn" / records.FILE
    torn.write_text("not JSON\n")
    target = tmp_path / "out" / "papers.html"
    assert main(["reproduce", "--list", "-o", str(target), "--runs", str(tmp_path / "runs")]) == 0
    out, err = capsys.readouterr()
    assert f"Report:     {target}" in out
    assert str(torn) in err
    page = target.read_text(encoding="utf-8")
    assert str(torn) in Reader(section(page, "counts")).text
    assert [path for path in resolve(page, target) if not path.is_file()] == []


@pytest.mark.parametrize("words", [("table1",), (), ("table1", "--quick")])
def test_only_the_list_goes_to_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert main(["reproduce", *words, "--output", str(tmp_path / "papers.html")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "expected --list with --output" in err
    assert f"infobatch reproduce --list -o {tmp_path / 'papers.html'}" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_page_holds_what_the_records_say() -> None:
    """But for the drawings, whose last digits are matplotlib's."""
    path = ROOT / "docs" / "papers.html"
    known = evidence()
    now = report.papers_html([line.outcome for line in listing(known)], known, path)
    kept, made = (re.sub("<svg.*?</svg>", "", text, flags=re.S) for text in (path.read_text(encoding="utf-8"), now))
    assert kept == made, "infobatch reproduce --list -o docs/papers.html"


WIDE = """[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).map(
    e => `${e.ariaLabel}: ${e.scrollWidth} in ${e.clientWidth}`)"""


@pytest.mark.slow
@pytest.mark.skipif(program() is None, reason="needs Chromium or Chrome on the path")
@pytest.mark.parametrize("font", ["sans-serif", "monospace"])
def test_the_page_that_is_kept_fits_small_windows(font: str) -> None:
    """Nobody has to scroll sideways, neither the page nor a table in it; 375 is 390 with a bar to scroll by."""
    browser = Browser()
    try:
        for width in (320, 360, 375, 390, 600):
            browser.open(ROOT / "docs" / "papers.html", width, 800)
            browser.ask(f"document.body.style.fontFamily = '{font}'")
            browser.ask("document.querySelectorAll('details').forEach(one => one.open = true)")
            assert browser.ask("document.documentElement.scrollWidth") <= width
            assert browser.ask(WIDE) == []
    finally:
        browser.close()


@pytest.mark.slow
@pytest.mark.skipif(program() is None, reason="needs Chromium or Chrome on the path")
def test_it_fits_a_phone_and_needs_nothing(page: str, target: Path) -> None:
    browser = Browser()
    try:
        for width in (360, 820, 1280):
            browser.open(target, width, 900)
            browser.ask("document.querySelectorAll('details').forEach(one => one.open = true)")
            assert browser.ask("document.documentElement.scrollWidth") <= width
            script = """[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, .tip, thead') &&
                e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + e.className)"""
            assert browser.ask(script) == []
        asked = [event["request"]["url"] for event in browser.seen("Network.requestWillBeSent")]
        assert asked == [target.resolve().as_uri()]
    finally:
        browser.close()
