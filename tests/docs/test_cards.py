"""A card for every method, and a method for every card; what it states is what the registries and the records hold.

``python tests/docs/test_cards.py --write`` writes the tables of docs/methods/README.md and those lines of the cards
that repeat a registry. ``python tools/method_tables.py`` writes what was measured.
"""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infobatch import methods, variations
from infobatch.lab.runs import records
from infobatch.lab.train.settings import Settings
from infobatch.methods.card import CARDS
from infobatch.selection import SELECTORS

FOLDER = Path(__file__).parents[2] / "docs" / "methods"
INDEX = FOLDER / "README.md"
STATIC = "static_"
ABOUT = {"README", "table1", "variations"}
DYNAMIC_CARDS = list(methods.METHODS)
STATIC_CARDS = [STATIC + name for name in SELECTORS]
PAGES = [*DYNAMIC_CARDS, *STATIC_CARDS, "variations"]
PARTS = (
    *("**Formula**", "**Use**", "**Settings**", "**When it helps, when it does not**", "**Needs**", "**Cost**"),
    *("**Measured**", "**Source**", "**Where we differ**"),
)


def _fill() -> Any:
    spec = importlib.util.spec_from_file_location("fill", FOLDER.parents[1] / "tools" / "method_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fill"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


fill = _fill()


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text()


def measured_of(text: str) -> str:
    return text.split(fill.BEGIN)[1].split(fill.END)[0].strip()


def without_measured(text: str) -> str:
    return text.replace(measured_of(text), "")


# ---- cards and registries --------------------------------------------------------------------------------------


def facts(name: str) -> tuple[str, str]:
    """The two lines of a card that repeat its registry: needs, cost and weights; and the source."""
    if name.startswith(STATIC):
        one = SELECTORS[name.removeprefix(STATIC)]
        line = f"**Needs**: {', '.join(one.needs) or 'nothing'}. **Cost**: {one.cost}. **Weights**: {one.weights}."
        return line, f"**Source**: {one.source}."
    card = CARDS[name]
    line = f"**Needs**: {card.needs}. **Cost** of a plan: {card.cost}. **Weights**: {card.weights}."
    return line, f"**Source**: {card.source}."


def test_every_method_has_a_card_and_every_card_a_method() -> None:
    there = {path.stem for path in FOLDER.glob("*.md")}
    assert there == set(PAGES) | ABOUT


@pytest.mark.parametrize("name", PAGES)
def test_a_card_has_its_parts_in_order(name: str) -> None:
    text = without_measured(text_of(name))
    assert text.startswith("# ")
    places = [text.index(part) for part in PARTS]
    assert places == sorted(places)
    assert all(text.count(part) == 1 for part in PARTS)
    assert text.count(fill.BEGIN) == text.count(fill.END) == text.count("```python") == 1
    assert "<!-- skip -->" not in text


@pytest.mark.parametrize("name", [*DYNAMIC_CARDS, *STATIC_CARDS])
def test_a_card_states_what_the_registry_holds(name: str) -> None:
    rows = text_of(name).splitlines()
    for line in facts(name):
        assert line in rows, "python tests/docs/test_cards.py --write"


@pytest.mark.parametrize("name", [*DYNAMIC_CARDS, *STATIC_CARDS])
def test_a_card_states_the_settings_and_their_defaults(name: str) -> None:
    maker: Any = methods.METHODS.get(name) or SELECTORS[name.removeprefix(STATIC)].choose
    common = ("evidence", "share", "balanced", "seed") if name.startswith(STATIC) else ("labels",)
    true = {key: one.default for key, one in inspect.signature(maker).parameters.items() if key not in common}
    told = re.findall(r"^\| `(\w+)` \| `(.+?)` \| .+ \|$", text_of(name), re.MULTILINE)
    assert {key: eval(value) for key, value in told} == true
    assert len(told) == len(true)


def test_the_variations_are_told_with_their_defaults() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) ?\| .+ \|$", text_of("variations"), re.MULTILINE)
    told = {name: dict(re.findall(r"`(\w+)=([\d.]+)`", rest)) for name, rest in rows}
    mine = [
        name
        for name, one in vars(variations).items()
        if inspect.isfunction(one) and one.__module__ == variations.__name__ and not name.startswith("_")
    ]
    assert set(told) == set(mine)
    for name in mine:
        own = inspect.signature(getattr(variations, name)).parameters.values()
        assert told[name] == {
            one.name: repr(one.default) for one in own if one.default is not inspect.Parameter.empty
        }


@pytest.mark.parametrize("name", [*PAGES, "README"])
def test_a_card_is_short_and_narrow(name: str) -> None:
    text = text_of(name)
    rows = (without_measured(text) if name in PAGES else text).splitlines()
    assert len(rows) <= 70 or name == "README"
    for row in rows:
        assert len(row) <= 132 or row.startswith("|"), row
        assert row == row.rstrip()


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_the_text_speaks_of_the_project_alone(path: Path) -> None:
    if path.is_file():
        text = path.read_text()
        assert not re.search(r"\b(session|helper|engineer|assistant|agent|worktree|brief|TODO)s?\b", text)
        assert not re.search(r"/tmp/|/work/|/root/|[Ii]ssue \d|#\d", text)


# ---- the index -------------------------------------------------------------------------------------------------


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


def tables() -> dict[str, list[str]]:
    """The tables of the index, by name, as lines."""
    return {
        "dynamic": [
            "| method | leaves out | weights | needs | cost of a plan |",
            "|---|---|---|---|---|",
            *(
                f"| [{name}]({name}.md) | {card.leaves_out} | {card.weights} | {card.needs} | {card.cost} |"
                for name in methods.METHODS
                for card in [CARDS[name]]
            ),
        ],
        "static": [
            "| method | rule | weights | needs | cost |",
            "|---|---|---|---|---|",
            *(
                f"| [{name}]({STATIC}{name}.md) | {escaped(one.rule)} | {one.weights} "
                f"| {', '.join(one.needs) or 'nothing'} | {one.cost} |"
                for name, one in SELECTORS.items()
            ),
        ],
    }


def test_the_index_says_what_the_registries_hold() -> None:
    page = INDEX.read_text()
    for name, lines in tables().items():
        begin, end = f"<!-- table: {name} -->", "<!-- end -->"
        assert page.count(begin) == 1
        assert page.split(begin)[1].split(end)[0].strip().splitlines() == lines, "test_cards.py --write"
    assert sum(row.startswith("|") for row in page.splitlines()) == sum(map(len, tables().values()))


def write() -> None:
    page = INDEX.read_text()
    for name, lines in tables().items():
        begin, end = f"<!-- table: {name} -->", "<!-- end -->"
        before, rest = page.split(begin)
        page = "\n".join([before + begin, *lines, end + rest.split(end, 1)[1]])
    INDEX.write_text(page)
    for name in (*DYNAMIC_CARDS, *STATIC_CARDS):
        needs, source = facts(name)
        text = re.sub(r"^\*\*Needs\*\*.*$", lambda _, line=needs: line, text_of(name), flags=re.MULTILINE)
        text = re.sub(r"^\*\*Source\*\*.*$", lambda _, line=source: line, text, flags=re.MULTILINE)
        (FOLDER / f"{name}.md").write_text(text)


# ---- what was measured -----------------------------------------------------------------------------------------


def record(method: str, seed: int, metric: float, took: int, saved: float = 0.0, **settings: Any) -> list[str]:
    """A run as a campaign keeps it: start and end."""
    plain = Settings.of({"task": "digits", "epochs": 20, "seed": seed, "method": method, **settings}).plain()
    start = {"kind": "start", "format": 2, "run": f"{method}-{seed}", "settings": plain, "size": 1257}
    end = {"kind": "end", "metric": metric, "steps": took, "saved": saved, "seconds": {"total": 1.0}}
    return [records.line(start), records.line(end)]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Records of two seeds, with numbers that a pencil can check."""
    lines: list[str] = []
    for seed, full, short in ((0, 99.0, 97.0), (1, 98.0, 97.0)):
        lines += record("full", seed, full, 400)
        lines += record("full", seed, short, 100, steps=100)
        lines += record("full", seed, short + 0.5, 200, steps=200)
        # half the steps of full data, where that has 97.5
        lines += record("ucb:ratio=0.5,every=2", seed, 98.0 - 0.5 * seed, 200, saved=0.5)
        lines += record("ucb:ratio=0.5,every=2,unbiased=0.25", seed, 96.0, 200, saved=0.5)
        # in the middle of 100 and 200 on the scale of logarithms: 97.25
        lines += record("infobatch", seed, 97.25 + seed, 141, saved=0.6475, compensate="loss")
        lines += record("eswp:ratio=0.4", seed, 98.0, 250, saved=0.38)  # no column of Table 1
        lines += record("static.el2n:share=0.3,balanced=True", seed, 90.0 + 2 * seed, 60, saved=0.7)
        lines += record("seta:ratio=0.125,share=0.8", seed, 99.0, 300, saved=0.4, task="fashion_mnist", epochs=10)
    folder = tmp_path / "records"
    folder.mkdir()
    (folder / "made.jsonl").write_text("".join(lines))
    return folder


def rows_of(text: str) -> Iterator[list[str]]:
    for row in text.splitlines():
        if row.startswith("| ") and "---" not in row:
            yield [cell.strip() for cell in row.strip("|").split("|")]


@pytest.mark.parametrize(
    ("method", "share"),
    [
        *(("ucb:ratio=0.5,every=2", 50), ("rcap:ratio=0.3", 30), ("saving:share=0.7", 70), ("rising", 35)),
        *(("order_dp:some=0.9,best=0.7778", 30), ("order_dp", 70), ("seta:ratio=0.125,share=0.8", 30)),
        *(("static.random:share=0.7", 30), ("static.dq:share=0.25,balanced=True", 75)),
        *((name, None) for name in ("full", "infobatch", "tiers", "kakurenbo", "ies", "bls")),
        ("static.el2n:share=0.7,then=infobatch", None),
    ],
)
def test_what_a_method_asks_to_leave_out(method: str, share: int | None) -> None:
    asked = fill.asked_of(method)
    assert (None if asked is None else round(100 * asked)) == share


def test_cards_are_filled_from_records(kept: Path) -> None:
    pages = {path.stem: text for path, text in fill.pages(FOLDER, fill.read(kept)).items()}
    ucb = list(rows_of(measured_of(pages["ucb"])))
    # differences to full -1, -0.5 and to as many steps +0.5, 0: Student's t of one degree at 95 % is 12.706
    assert ucb[1] == [
        *("digits", "50", "50.0", "97.75 ± 0.35 (2)", "-0.75 [-3.93, +2.43]", "+0.25 [-2.93, +3.43]", "every=2")
    ]
    # two seeds alike have no spread to judge by
    assert ucb[2][3:6] == ["96.00 ± 0.00 (2)", "-2.50 [-8.85, +3.85]", "-1.50"]
    assert [row[-1] for row in ucb[1:]] == ["every=2", "every=2, unbiased=0.25"]
    own = list(rows_of(measured_of(pages["infobatch"])))[1]
    assert own[:4] == ["digits", "-", "64.8", "97.75 ± 0.71 (2)"]
    assert own[5].startswith("+0.50 ")
    assert own[6] == "loss grows"
    # fewer steps than full data was ever given: nothing to compare with
    assert list(rows_of(measured_of(pages["static_el2n"])))[1][4:] == ["-7.50 [-26.56, +11.56]", "-", "balanced=True"]
    # no full data of that task
    assert list(rows_of(measured_of(pages["seta"])))[1][:6] == [
        "Fashion-MNIST",
        "30",
        "40.0",
        "99.00 ± 0.00 (2)",
        "-",
        "-",
    ]
    full = [row[3:5] + row[6:] for row in rows_of(measured_of(pages["full"]))][1:]
    assert [row[2] for row in full] == ["-", "steps=100", "steps=200"]
    assert full[1][:2] == ["97.00 ± 0.00 (2)", "-1.50 [-7.85, +4.85]"]
    assert measured_of(pages["rs2"]) == fill.NOTHING
    varied = list(rows_of(measured_of(pages["variations"])))
    assert [row[0] for row in varied[1:]] == ["[ucb](ucb.md)"]


def test_table1_has_a_row_a_method_and_a_column_a_share(kept: Path) -> None:
    page = fill.pages(FOLDER, fill.read(kept))[FOLDER / "table1.md"]
    side, own = page.split("## Methods that decide themselves how many")
    head, *rows = rows_of(side)
    assert head[1:] == [f"{task} {share}" for task in ("digits", "Fashion-MNIST") for share in (30, 50, 70)]
    cells = {row[0]: row[1:] for row in rows}
    assert cells["full data"][:4] == ["98.50 ± 0.71 (2)"] * 3 + ["-"]
    assert cells["full data, as few steps"][:3] == ["-", "97.50 ± 0.00 (2)", "-"]
    assert cells["[ucb](ucb.md) every=2"][1] == "97.75 ± 0.35 (2)"
    assert cells["[static_el2n](static_el2n.md) balanced=True"] == ["-", "-", "91.00 ± 1.41 (2)", "-", "-", "-"]
    assert cells["[seta](seta.md) share=0.8"][3] == "99.00 ± 0.00 (2)"
    assert not any("eswp" in row for row in cells)
    assert [row[0] for row in rows_of(own)] == ["method", "[infobatch](infobatch.md)"]
    assert "1,257 training samples" in side


def test_a_difference_beyond_chance_is_marked(kept: Path) -> None:
    lines = [line for seed in range(4) for line in record("rs2:ratio=0.3", seed, 95.0 + 0.01 * seed, 280)]
    lines += [line for seed in range(4) for line in record("full", seed, 99.0 - 0.01 * seed, 400)]
    lines += [line for seed in range(4) for line in record("eswp:ratio=0.3", seed, 99.5 + 0.01 * seed, 280)]
    (kept / "made.jsonl").write_text("".join(lines))
    cells = {row[0]: row[1] for row in rows_of(fill.pages(FOLDER, fill.read(kept))[FOLDER / "table1.md"])}
    assert cells["[rs2](rs2.md)"] == "95.02 ± 0.01 (4) ▼"
    assert cells["[eswp](eswp.md)"] == "99.52 ± 0.01 (4) ▲"


def test_filling_keeps_the_rest_and_settles(kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cards = tmp_path / "cards"
    cards.mkdir()
    for name in ("ucb", "rs2"):
        (cards / f"{name}.md").write_text(text_of(name))
    given = ["--records", str(kept), "--cards", str(cards)]
    assert fill.main([*given, "--check"]) == 1
    assert measured_of((cards / "ucb.md").read_text()) == measured_of(text_of("ucb"))
    assert fill.main(given) == 0
    assert "97.75 ± 0.35 (2)" in (cards / "ucb.md").read_text()
    assert without_measured((cards / "ucb.md").read_text()) == without_measured(text_of("ucb"))
    assert str(cards / "table1.md") in capsys.readouterr().out
    assert fill.main([*given, "--check"]) == 0
    assert capsys.readouterr().out == ""


def test_without_records_a_card_says_so(tmp_path: Path) -> None:
    pages = fill.pages(FOLDER, fill.read(tmp_path))
    assert {measured_of(text) for path, text in pages.items() if path.stem != "table1"} == {fill.NOTHING}
    assert fill.NOTHING in pages[FOLDER / "table1.md"]


def test_the_pages_hold_what_the_records_say() -> None:
    stale = [path.name for path, text in fill.pages(FOLDER, fill.read(fill.KEPT)).items() if path.read_text() != text]
    assert not stale, "python tools/method_tables.py"


def test_the_examples_of_the_filler_run() -> None:
    assert doctest.testmod(fill).failed == 0


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/docs/test_cards.py --write")
    write()
