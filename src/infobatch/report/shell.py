"""Render the templates that all pages share: theme, style sheets, and a policy that blocks network and scripts."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from .figures.palette import DARK, LIGHT

HERE = Path(__file__).parent
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""Nothing may be fetched, and no script may run, whatever a name contains."""


def render(template: str, styles: tuple[str, ...] = ("style.css",), **values: Any) -> str:
    """Render a template that extends base.html, with these style sheets inlined. All values are escaped."""
    sheets = Markup("".join((HERE / name).read_text(encoding="utf-8") for name in styles))
    return _environment().get_template(template).render(policy=POLICY, light=LIGHT, dark=DARK, style=sheets, **values)


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
