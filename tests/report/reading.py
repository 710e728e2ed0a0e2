"""Read a page as a browser's parser does, and the numbers and lines of its figures."""

from __future__ import annotations

import csv
import io
import re
from functools import cache
from html.parser import HTMLParser
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np


class Reader(HTMLParser):
    """Elements with their attributes, and all text outside styles, as a browser's parser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data: str) -> None:
        if self._inside != "style":
            self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@cache
def parsed(page: str) -> Reader:
    """Parse a page once for all tests of it."""
    return Reader(page)


def section(page: str, key: str) -> str:
    """The HTML inside one section of a page."""
    return page.split(f'<section id="{key}">')[1].split("</section>")[0]


def table(page: str, key: str) -> list[dict[str, str]]:
    """The numbers behind a figure, out of its link."""
    found = re.search(rf'download="{key}.csv" href="data:text/csv;charset=utf-8,([^"]*)"', page)
    assert found is not None, key
    return list(csv.DictReader(io.StringIO(unquote(found[1]))))


def drawing(page: str, key: str) -> ElementTree.Element:
    found = re.search(rf'<figure id="{key}".*?(<svg viewBox.*?</svg>)', page, re.S)
    assert found is not None, key
    return ElementTree.fromstring(found[1])


def lines_of(svg: ElementTree.Element) -> list[list[np.ndarray]]:
    """The points of each curve in pixels, one array for each unbroken piece of it."""
    paths = [path.get("d") or "" for path in svg.iter("path") if "stroke-width: 1.9" in (path.get("style") or "")]
    return [
        [
            np.array([[float(number) for number in point.split()] for point in piece.split("L")])
            for piece in path.split("M")[1:]
        ]
        for path in paths
    ]
