"""Write what the method cards repeat from the registries: needs, cost, weights and source, and the index's tables.

    python tools/method_cards.py            # bring docs/methods up to date
    python tools/method_cards.py --check    # change nothing; print what is out of date, and then exit with 1

Everything else on a card is written by hand, apart from the measurements, which tools/method_tables.py fills in. The
methods of infobatch.sieve share one page, with a section for each. Needs infobatch[lab].
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from infobatch.methods import CARDS
from infobatch.selection import SELECTORS
from infobatch.sieve import SIEVE_CARDS

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "methods"
INDEX, SIEVE_PAGE = "README.md", "sieve.md"
STATIC = "static_"
"""How the name of a static method's card begins."""
DYNAMIC_CARDS = list(CARDS)
STATIC_CARDS = [STATIC + name for name in SELECTORS]
TABLE, TABLE_END = "<!-- table: {} -->", "<!-- end -->"


def card_lines(name: str) -> dict[str, str]:
    """Return the lines of a card that repeat its registry, by the bold word that each begins with.

    >>> card_lines("full")["Source"]
    '**Source**: baseline.'
    """
    if name.startswith(STATIC):
        selector = SELECTORS[name.removeprefix(STATIC)]
        needs, cost = ", ".join(selector.needs) or "nothing", f"**Cost**: {selector.cost}"
        weights, source = selector.weights, selector.source
    else:
        card = CARDS[name]
        needs, cost, weights, source = card.needs, f"**Cost** of a plan: {card.cost}", card.weights, card.source
    return {
        "Needs": f"**Needs**: {needs}. {cost}. **Weights**: {weights}.",
        "Source": f"**Source**: {source}.",
    }


def section_lines(name: str) -> dict[str, str]:
    """Return the lines of a section of the sieve's page that repeat its registry, by their first bold word.

    >>> section_lines("random_rows")["Needs"]
    '**Needs**: nothing. **Look**: no look. **Weights**: all 1.'
    """
    card = SIEVE_CARDS[name]
    return {
        "Needs": f"**Needs**: {card.needs}. **Look**: {card.cost}. **Weights**: {card.weights}.",
        "Source": f"**Source**: {card.source}.",
    }


def sections_of(page: str) -> dict[str, str]:
    """Return the sections of a page by their headings; what comes before the first is under "".

    >>> sections_of("# Title\\n## one\\ntext\\n## two\\n")
    {'': '# Title\\n', 'one': '## one\\ntext\\n', 'two': '## two\\n'}
    """
    parts = re.split(r"^(?=## )", page, flags=re.MULTILINE)
    return {"": parts[0], **{part.splitlines()[0].removeprefix("## "): part for part in parts[1:]}}


def index_tables() -> dict[str, list[str]]:
    """Return the tables of the index by name, as lines."""
    dynamic = [
        f"| [{name}]({name}.md) | {card.leaves_out} | {card.weights} | {card.needs} | {card.cost} |"
        for name, card in CARDS.items()
    ]
    static = [
        f"| [{name}]({STATIC}{name}.md) | {_escape(selector.keeps)} | {selector.weights} "
        f"| {', '.join(selector.needs) or 'nothing'} | {selector.cost} |"
        for name, selector in SELECTORS.items()
    ]
    inside = [
        f"| [{name}]({SIEVE_PAGE}#{name}) | {card.leaves_out} | {card.weights} | {card.needs} | {card.cost} |"
        for name, card in SIEVE_CARDS.items()
    ]
    return {
        "dynamic": ["| method | leaves out | weights | needs | cost of a plan |", "|---|---|---|---|---|", *dynamic],
        "sieve": ["| method | leaves out | weights | needs | look |", "|---|---|---|---|---|", *inside],
        "static": ["| method | keeps | weights | needs | cost |", "|---|---|---|---|---|", *static],
    }


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def _with_tables(page: str) -> str:
    for name, lines in index_tables().items():
        before, after = page.split(TABLE.format(name))
        rest = after.split(TABLE_END, 1)[1]
        page = "\n".join([before + TABLE.format(name), *lines, TABLE_END + rest])
    return page


def _with_lines(page: str, lines: dict[str, str]) -> str:
    for word, line in lines.items():
        page = re.sub(rf"^\*\*{word}\*\*.*$", lambda _, line=line: line, page, flags=re.MULTILINE)
    return page


def pages(folder: Path = FOLDER) -> dict[Path, str]:
    """Return every page that repeats a registry, as it should be.

    Raises:
        FileNotFoundError: A method has no card yet.
    """
    index = folder / INDEX
    cards = {folder / f"{name}.md": name for name in (*DYNAMIC_CARDS, *STATIC_CARDS)}
    made = {path: _with_lines(path.read_text(), card_lines(name)) for path, name in cards.items()}
    inside = folder / SIEVE_PAGE
    sections = sections_of(inside.read_text())
    made[inside] = "".join(
        _with_lines(text, section_lines(name)) if name in SIEVE_CARDS else text for name, text in sections.items()
    )
    return {index: _with_tables(index.read_text()), **made}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages that are out of date, or only print them; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="the folder of the cards")
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args(arguments)
    stale = {path: text for path, text in pages(options.folder).items() if path.read_text() != text}
    for path, text in stale.items():
        print(path)
        if not options.check:
            path.write_text(text)
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
