"""Define the page's colours, light and dark.

The six line colours start from those of Okabe and Ito. They were adjusted until each has a contrast of at least 3:1 to
the page and any two differ by at least 20 in CIE L*a*b*, also for red-blind and green-blind readers. Text has a
contrast of at least 4.5:1.
"""

from __future__ import annotations

LIGHT = {
    "--page": "#f6f7f8", "--card": "#ffffff", "--ink": "#17202a", "--muted": "#5b6670", "--grid": "#e3e7ea",
    "--edge": "#dfe4e8", "--link": "#005f94", "--soft": "#eef2f5",
    "--line-0": "#0077c4", "--line-1": "#e46d05", "--line-2": "#01916a", "--line-3": "#c363a0", "--line-4": "#705100",
    "--line-5": "#3b2f7f",
    "--part-0": "#33566f", "--part-1": "#6b93ad", "--part-2": "#8fa9a0", "--part-3": "#e46d05", "--part-4": "#c3ced6",
    "--part-5": "#a8d5c2", "--part-6": "#8a5a9e",
    "--good": "#00704f", "--good-soft": "#e0f2ec", "--bad": "#a63c00", "--bad-soft": "#fbe9df",
    "--open": "#7a5600", "--open-soft": "#f7eed6",
}  # fmt: skip

DARK = {
    "--page": "#101418", "--card": "#181e24", "--ink": "#e6ebef", "--muted": "#98a5b0", "--grid": "#2a333c",
    "--edge": "#29323b", "--link": "#6cb8ec", "--soft": "#202830",
    "--line-0": "#4f9cd1", "--line-1": "#de7e44", "--line-2": "#2fc497", "--line-3": "#ffb8e1", "--line-4": "#f0d060",
    "--line-5": "#8694ff",
    "--part-0": "#7fa9c6", "--part-1": "#4f7690", "--part-2": "#5f7d72", "--part-3": "#de7e44", "--part-4": "#3d4a55",
    "--part-5": "#2c6b56", "--part-6": "#a886c2",
    "--good": "#5fd3ad", "--good-soft": "#15332a", "--bad": "#f7a272", "--bad-soft": "#3a2318",
    "--open": "#e2bf6a", "--open-soft": "#332b16",
}  # fmt: skip
