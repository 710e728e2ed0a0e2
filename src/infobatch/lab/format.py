"""Format numbers and names the same way on a terminal and on a page."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

SIMILAR = 0.65
"""From this similarity on, two names are likely to be one with a typing error: "nothing" is not "string"."""


def percent(share: float) -> str:
    """Format a share as a percentage.

    >>> percent(0.975)
    '97.5 %'
    """
    return f"{100 * share:.4g} %"


def format_number(form: str, value: float) -> str:
    """Format a number; one that rounds to zero is shown without a sign.

    >>> format_number("{:+.2f}", -0.25), format_number("{:+.2f}", -0.001), format_number("{:.1f} %", -0.0)
    ('-0.25', '0.00', '0.0 %')
    """
    text = form.format(value)
    is_zero = math.isfinite(value) and not any(digit in text for digit in "123456789")
    return form.replace("+", "").format(0.0) if is_zero else text


def suggest(name: str, known: Iterable[str]) -> str:
    """Name the closest of the known names, or list them all.

    >>> suggest("epoch", ["epochs", "lr"]), suggest("x", ["b", "a"])
    ('Did you mean epochs?', 'Known names: a, b.')
    """
    known = list(known)
    close = difflib.get_close_matches(name, known, n=2, cutoff=SIMILAR)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    return f"Known names: {', '.join(sorted(known))}." if known else "It has none."
