"""What a metric must offer: ``update``, ``compute`` and ``reset``, as the metrics of torchmetrics do.

What a comparison must know is read from the attributes ``name``, ``unit``, ``higher_is_better`` and ``margin``;
``Named`` gives them to a metric that lacks them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from ...errors import InputError, message
from .metric_info import MARGIN, PERCENT, MetricInfo, is_margin

Prepare = Callable[[Any, Any], tuple[Any, Any]]


@runtime_checkable
class Metric(Protocol):
    """A metric over a whole test set, fed batch by batch.

    It may also have ``to(device)``, and ``by_class(classes)``, which returns one number per class, or None.
    """

    def update(self, outputs: Any, targets: Any) -> Any:
        """Take in the outputs of the net for a batch, and the targets."""
        ...

    def compute(self) -> Any:
        """Return the metric over everything since the last ``reset``, as one number."""
        ...

    def reset(self) -> Any:
        """Forget everything."""
        ...


class NothingMeasuredError(InputError):
    """A metric that saw nothing it could measure: it has no value."""


class Named:
    """A metric with the name, unit, direction and margin that it does not state itself.

    Args:
        metric: Has ``update``, ``compute`` and ``reset``.
        name: What to call it.
        unit: For example "%"; may be empty.
        higher_is_better: By default, what the metric says.
        margin: How much a method may lose and still count as lossless; 0.3 by default if the unit is %.
        scale: Multiplies what the metric computes, as 100 for a share that is shown in percent.
        prepare: (outputs, targets) -> what the metric's ``update`` takes.

    Raises:
        InputError: If it is not a metric, or its direction is unknown.

    >>> import torch
    >>> from infobatch.lab.metrics import MeanScore, Named
    >>> error = MeanScore(lambda outputs, targets: (outputs - targets).abs().clamp(max=1))
    >>> error = Named(error, "mean error", unit="m", higher_is_better=False, margin=0.02, scale=0.01)
    >>> error.update(torch.tensor([0.5, 0.25]), torch.tensor([0.0, 0.25]))
    >>> error.compute()
    0.25
    """

    def __init__(
        self,
        metric: Metric,
        name: str,
        *,
        unit: str = "",
        higher_is_better: bool | None = None,
        margin: float | None = None,
        scale: float = 1.0,
        prepare: Prepare | None = None,
    ) -> None:
        check_metric(metric)
        self.metric, self.name, self.unit, self.scale, self.prepare = metric, name, unit, scale, prepare
        self.higher_is_better = _direction(metric) if higher_is_better is None else higher_is_better
        self.margin = margin

    def update(self, outputs: Any, targets: Any) -> None:
        """See Metric."""
        self.metric.update(*((outputs, targets) if self.prepare is None else self.prepare(outputs, targets)))

    def compute(self) -> float:
        """See Metric."""
        return self.scale * value_of(self.metric)

    def reset(self) -> None:
        """See Metric."""
        self.metric.reset()

    def to(self, device: Any) -> Named:
        """Move what the metric holds to a device."""
        if hasattr(self.metric, "to"):
            self.metric.to(device)
        return self

    def by_class(self, classes: int) -> list[float | None] | None:
        """Return the metric per class, if the metric knows it."""
        found = by_class(self.metric, classes)
        return None if found is None else [None if each is None else self.scale * each for each in found]


def check_metric(metric: Any) -> None:
    """Refuse anything that is not a metric.

    Raises:
        InputError: If it has no ``update``, ``compute`` or ``reset``, or is a class.
    """
    if isinstance(metric, type):
        raise InputError(message("a metric", f"the class {metric.__name__}", f"Build it: {metric.__name__}(...)."))
    missing = [name for name in ("update", "compute", "reset") if not callable(getattr(metric, name, None))]
    if missing:
        remedy = "For one number per sample in [0, 1] use MeanScore(function) of infobatch.lab.metrics."
        got = f"{type(metric).__name__} without {', '.join(missing)}"
        raise InputError(message("a metric with update, compute and reset, or a title", got, remedy))


def info_of(metric: Metric, margin: float | None = None) -> MetricInfo:
    """Read what a comparison must know of a metric.

    Args:
        metric: The metric.
        margin: How much may be lost, if not what the metric says.

    Raises:
        InputError: If direction or margin are unknown. Only percentages have a margin by default.
    """
    name, unit = getattr(metric, "name", None), getattr(metric, "unit", None)
    name = name if isinstance(name, str) and name else type(metric).__name__
    unit = unit if isinstance(unit, str) else ""
    stated = getattr(metric, "margin", None) if margin is None else margin
    if stated is None and unit == PERCENT:
        stated = MARGIN
    if not is_margin(stated):
        remedy = "State how much may be lost without harm, in the unit of the metric: Task(..., margin=0.01)."
        got = "none" if stated is None else repr(stated)
        raise InputError(message(f"a margin above 0 for the metric {name}", got, remedy))
    return MetricInfo(name, unit, _direction(metric), float(stated))


def _direction(metric: Any) -> bool:
    higher = getattr(metric, "higher_is_better", None)
    if isinstance(higher, bool):
        return higher
    name = type(metric).__name__
    remedy = f'Name it: infobatch.lab.metrics.Named({name}(...), "{name}", higher_is_better=True).'
    raise InputError(message(f"whether a higher {name} is better", f"higher_is_better={higher!r}", remedy))


def value_of(metric: Metric) -> float:
    """Return what a metric computes as a float.

    Raises:
        InputError: If it is not one number.
    """
    value = metric.compute()
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return float(value)
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        got = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        remedy = "Choose one: average over classes, or wrap it in a class whose compute returns the number to judge."
        name = getattr(metric, "name", None) or type(metric).__name__
        raise InputError(message(f"one number from {name}.compute()", got, remedy)) from None


def by_class(metric: Metric, classes: int) -> list[float | None] | None:
    """Return the metric per class; None if there are no classes or the metric does not know it."""
    found: Callable[[int], list[float | None] | None] | None = getattr(metric, "by_class", None)
    return found(classes) if callable(found) and classes else None
