"""Where the tests draw their lots from."""

from __future__ import annotations

import torch


def lot(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
