"""Metrics of the lab's tasks: ``update(outputs, targets)``, ``compute()`` and ``reset()``, as in torchmetrics."""

from .average_precision import MeanAveragePrecision
from .frechet import FrechetDistance
from .mean_iou import MeanIoU
from .mean_score import Accuracy, MeanScore
from .metric import Metric, Named
from .metric_info import MetricInfo
from .perplexity import ExactMatch, Perplexity

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
