"""Numbers in words, the same on a terminal and on a page."""

from __future__ import annotations

import math


def percent(share: float) -> str:
    """
    >>> percent(0.975)
    '97.5 %'
    """
    return f"{100 * share:.4g} %"


def told(form: str, value: float) -> str:
    """A number in words; what rounds to nothing has no sign.

    >>> told("{:+.2f}", -0.25), told("{:+.2f}", -0.001), told("{:.1f} %", -0.0)
    ('-0.25', '0.00', '0.0 %')
    """
    text = form.format(value)
    nothing = math.isfinite(value) and not any(digit in text for digit in "123456789")
    return form.replace("+", "").format(0.0) if nothing else text
