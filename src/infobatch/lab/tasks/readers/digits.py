"""The 1,797 handwritten digits that come with scikit-learn: 8 x 8 pixels, 1,257 to train and 540 to test."""

from __future__ import annotations

import numpy as np
import torch

from ..task import Arrays
from .common import Samples, package_missing


def read() -> Samples:
    """Read the digits; pixels from 0 to 16 are scaled to 0 to 255 without merging values."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise package_missing("scikit-learn", "lab") from error
    pixels, labels = load_digits(return_X_y=True)
    images = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    train, test = train_test_split(range(len(labels)), test_size=0.3, stratify=labels, random_state=0)
    inputs, targets = torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))
    return Samples(
        Arrays(inputs[train], targets[train]),
        Arrays(inputs[test], targets[test]),
        "scikit-learn's digits, 30 % held out (stratified, random_state 0)",
    )
