"""Colours stand out from the page, and lines from each other, for all eyes."""

from __future__ import annotations

import numpy as np
import pytest

from infobatch.report.figures import palette


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [palette.LIGHT, palette.DARK])
def test_colours_stand_out(colours: dict[str, str]) -> None:
    assert palette.LIGHT.keys() == palette.DARK.keys()
    for name in ("--ink", "--muted", "--link"):
        assert contrast(colours[name], colours["--card"]) >= 4.5
        assert contrast(colours[name], colours["--page"]) >= 4.5
    for name in ("--good", "--bad", "--open"):
        assert contrast(colours[name], colours[f"{name}-soft"]) >= 4.5
    for number in range(6):
        assert contrast(colours[f"--line-{number}"], colours["--card"]) >= 3


# Viénot, Brettel and Mollon (1999): what eyes without red or green cones see, in linear RGB.
EYES = {
    "full": np.eye(3),
    "no red": np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]]),
    "no green": np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]]),
}


def lab(colour: str, eyes: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of a colour as those eyes see it."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(eyes @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(to_xyz @ seen / np.array([0.9505, 1.0, 1.089]))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("colours", [palette.LIGHT, palette.DARK])
@pytest.mark.parametrize("eyes", EYES)
def test_lines_are_told_apart_by_all_eyes(colours: dict[str, str], eyes: str) -> None:
    seen = [lab(colours[f"--line-{number}"], EYES[eyes]) for number in range(6)]
    apart = {(i, j): float(np.linalg.norm(seen[i] - seen[j])) for i in range(6) for j in range(i)}
    assert min(apart.values()) > 20, apart
