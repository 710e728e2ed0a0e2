"""Metrics of the lab's tasks: ``update(outputs, targets)``, ``compute()`` and ``reset()``, as in torchmetrics."""

from .detection import MeanAveragePrecision
from .frechet import FrechetDistance
from .info import MetricInfo
from .language import ExactMatch, Perplexity
from .metric import Metric, Named
from .scores import Accuracy, MeanScore
from .segmentation import MeanIoU

__all__ = [
    "Accuracy",
    "ExactMatch",
    "FrechetDistance",
    "MeanAveragePrecision",
    "MeanIoU",
    "MeanScore",
    "Metric",
    "MetricInfo",
    "Named",
    "Perplexity",
]
