"""Every method has a card, and every card a method; a card states what the registries and the records hold.

``python tools/method_cards.py`` writes what a card repeats from its registry, ``python tools/method_tables.py`` what
was measured. The tests here check that both are up to date.
"""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infobatch import methods, variations
from infobatch.lab.runs import records
from infobatch.lab.train.settings import Settings
from infobatch.selection import SELECTORS
from infobatch.sieve import SIEVE_CARDS, SIEVE_METHODS, amount

ROOT = Path(__file__).parents[2]


def load_tool(name: str) -> Any:
    """Import a script of tools/, which is not a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


cards, fill = load_tool("method_cards"), load_tool("method_tables")
FOLDER, STATIC = cards.FOLDER, cards.STATIC
ABOUT = {"README", "table1", "variations", "sieve"}
PAGES = [*cards.DYNAMIC_CARDS, *cards.STATIC_CARDS, "variations"]
PARTS = (
    *("**Formula**", "**Use**", "**Settings**", "**When it helps, when it does not**", "**Needs**", "**Cost**"),
    *("**Measured**", "**Source**", "**Where we differ**"),
)


SECTION_PARTS = (*(part for part in PARTS if part != "**Where we differ**"), "**Look**", "**Weights**")


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text()


def measured_of(text: str) -> str:
    return text.split(fill.BEGIN)[1].split(fill.END)[0].strip()


def without_measured(text: str) -> str:
    return text.replace(measured_of(text), "")


def section_of(name: str) -> str:
    return str(cards.sections_of(text_of("sieve"))[name])


# ---- cards and registries --------------------------------------------------------------------------------------


def test_every_method_has_a_card_and_every_card_a_method() -> None:
    assert list(methods.METHODS) == cards.DYNAMIC_CARDS
    assert {path.stem for path in FOLDER.glob("*.md")} == set(PAGES) | ABOUT


@pytest.mark.parametrize("name", PAGES)
def test_a_card_has_all_its_parts(name: str) -> None:
    text = without_measured(text_of(name))
    assert text.startswith("# ")
    assert all(text.count(part) == 1 for part in PARTS)
    assert text.count(fill.BEGIN) == text.count(fill.END) == text.count("```python") == 1
    assert "<!-- skip -->" not in text


@pytest.mark.parametrize("name", [*cards.DYNAMIC_CARDS, *cards.STATIC_CARDS])
def test_a_card_states_the_settings_and_their_defaults(name: str) -> None:
    maker: Any = methods.METHODS.get(name) or SELECTORS[name.removeprefix(STATIC)].choose
    common = ("evidence", "share", "balanced", "seed") if name.startswith(STATIC) else ("labels",)
    true = {key: one.default for key, one in inspect.signature(maker).parameters.items() if key not in common}
    stated = re.findall(r"^\| `(\w+)` \| `(.+?)` \| .+ \|$", text_of(name), re.MULTILINE)
    assert {key: eval(value) for key, value in stated} == true
    assert len(stated) == len(true)


def test_the_variations_are_listed_with_their_defaults() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) ?\| .+ \|$", text_of("variations"), re.MULTILINE)
    stated = {name: dict(re.findall(r"`(\w+)=([\d.]+)`", rest)) for name, rest in rows}
    mine = [
        name
        for name, one in vars(variations).items()
        if inspect.isfunction(one) and one.__module__ == variations.__name__ and "method" in one.__annotations__
    ]
    assert set(stated) == set(mine)
    for name in mine:
        own = inspect.signature(getattr(variations, name)).parameters.values()
        assert stated[name] == {
            one.name: repr(one.default) for one in own if one.default is not inspect.Parameter.empty
        }


def test_every_sieve_method_has_a_section_and_every_section_a_method() -> None:
    assert [name for name in cards.sections_of(text_of("sieve")) if name] == list(SIEVE_METHODS) == list(SIEVE_CARDS)


@pytest.mark.parametrize("name", SIEVE_METHODS)
def test_a_section_has_all_its_parts(name: str) -> None:
    text = section_of(name)
    assert all(text.count(part) == 1 for part in SECTION_PARTS)
    assert text.count("```python") == 1
    assert f"infobatch.sieve.{name}(" in text
    is_published = SIEVE_CARDS[name].source not in ("ours", "control")
    assert text.count("**Where we differ**") == is_published
    rows = text.splitlines()
    assert all(rows.count(line) == 1 for line in cards.section_lines(name).values())
    assert len(rows) <= 60


@pytest.mark.parametrize("name", SIEVE_METHODS)
def test_a_section_states_the_settings_and_their_defaults(name: str) -> None:
    required = inspect.Parameter.empty
    true = {key: one.default for key, one in inspect.signature(SIEVE_METHODS[name]).parameters.items()}
    stated = re.findall(r"^\| `(\w+)` \| (.+?) \| .+ \|$", section_of(name), re.MULTILINE)
    read = {key: required if cell == "required" else eval(cell.strip("`"), vars(amount)) for key, cell in stated}
    assert read == true
    assert len(stated) == len(true)


@pytest.mark.parametrize("name", [*PAGES, "README", "sieve"])
def test_a_card_is_short_and_narrow(name: str) -> None:
    text = text_of(name)
    rows = (without_measured(text) if name in PAGES else text).splitlines()
    assert len(rows) <= 70 or name in ("README", "sieve")
    for row in rows:
        assert len(row) <= 132 or row.startswith(("|", "**Needs**", "**Source**")), row  # those are generated
        assert row == row.rstrip()


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_the_text_speaks_of_the_project_alone(path: Path) -> None:
    if path.is_file():
        text = path.read_text()
        assert not re.search(r"\b(session|helper|engineer|assistant|agent|worktree|brief|TODO)s?\b", text)
        assert not re.search(r"/tmp/|/work/|/root/|[Ii]ssue \d|#\d", text)


# ---- what repeats a registry -----------------------------------------------------------------------------------


def test_cards_and_index_say_what_the_registries_hold() -> None:
    stale = [path.name for path, text in cards.pages().items() if path.read_text() != text]
    assert not stale, "python tools/method_cards.py"


@pytest.mark.parametrize("name", [*cards.DYNAMIC_CARDS, *cards.STATIC_CARDS])
def test_a_card_has_a_line_for_each_fact(name: str) -> None:
    rows = text_of(name).splitlines()
    assert all(rows.count(line) == 1 for line in cards.card_lines(name).values())


def test_the_index_has_a_row_for_each_method_and_no_other_table() -> None:
    rows = [row for row in (FOLDER / cards.INDEX).read_text().splitlines() if row.startswith("|")]
    assert rows == [row for table in cards.index_tables().values() for row in table]


def test_writing_the_cards_changes_what_is_stale_and_settles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "methods"
    shutil.copytree(FOLDER, folder)
    paths = [folder / name for name in ("full.md", cards.INDEX, cards.SIEVE_PAGE)]
    right = [path.read_text() for path in paths]
    paths[0].write_text(right[0].replace("**Source**: ", "**Source**: stale "))
    paths[1].write_text(right[1].replace("| [full](full.md) |", "| [stale](full.md) |"))
    paths[2].write_text(right[2].replace("**Needs**: tokens. ", "**Needs**: stale. "))
    arguments = ["--folder", str(folder)]
    assert cards.main([*arguments, "--check"]) == 1
    assert all(path.read_text() != text for path, text in zip(paths, right, strict=True))
    assert set(capsys.readouterr().out.split()) == set(map(str, paths))
    assert cards.main(arguments) == 0
    assert [path.read_text() for path in paths] == right
    assert cards.main([*arguments, "--check"]) == 0


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
    assert cells["shorter run"][:3] == ["-", "97.50 ± 0.00 (2)", "-"]
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
    folder = tmp_path / "cards"
    folder.mkdir()
    for name in ("ucb", "rs2"):
        (folder / f"{name}.md").write_text(text_of(name))
    given = ["--records", str(kept), "--cards", str(folder)]
    assert fill.main([*given, "--check"]) == 1
    assert measured_of((folder / "ucb.md").read_text()) == measured_of(text_of("ucb"))
    assert fill.main(given) == 0
    assert "97.75 ± 0.35 (2)" in (folder / "ucb.md").read_text()
    assert without_measured((folder / "ucb.md").read_text()) == without_measured(text_of("ucb"))
    assert str(folder / "table1.md") in capsys.readouterr().out
    assert fill.main([*given, "--check"]) == 0
    assert capsys.readouterr().out == ""


def test_without_records_a_card_says_so(tmp_path: Path) -> None:
    pages = fill.pages(FOLDER, fill.read(tmp_path))
    assert {measured_of(text) for path, text in pages.items() if path.stem != "table1"} == {fill.NOTHING}
    assert fill.NOTHING in pages[FOLDER / "table1.md"]


def test_the_pages_hold_what_the_records_say() -> None:
    stale = [path.name for path, text in fill.pages(FOLDER, fill.read(fill.KEPT)).items() if path.read_text() != text]
    assert not stale, "python tools/method_tables.py"


@pytest.mark.parametrize("tool", [cards, fill], ids=lambda tool: tool.__name__)
def test_the_examples_of_the_tools_run(tool: Any) -> None:
    assert doctest.testmod(tool).failed == 0
