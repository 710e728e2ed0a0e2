"""Metrics of models that predict tokens."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ... import checks
from ...errors import InputError, message
from .metric import NothingMeasuredError
from .metric_info import MARGIN, PERCENT

IGNORE = -100


def aligned(outputs: Tensor, targets: Tensor, shift: bool) -> tuple[Tensor, Tensor]:
    """Return logits [..., vocabulary] and the tokens that they predict, [...].

    Args:
        outputs: Logits, the vocabulary last.
        targets: Tokens.
        shift: True if the logits at one position predict the token at the next, as in causal language models.

    Raises:
        InputError: If the shapes do not fit.
    """
    is_pair = isinstance(outputs, Tensor) and isinstance(targets, Tensor)
    if not is_pair or outputs.shape[:-1] != targets.shape or targets.is_floating_point():
        got = f"{checks.describe(outputs)} and {checks.describe(targets)}"
        remedy = "Return the logits from the net itself, with the vocabulary as their last dimension."
        raise InputError(message("logits [N, ..., vocabulary] and tokens [N, ...] as integers", got, remedy))
    return (outputs[:, :-1], targets[:, 1:]) if shift else (outputs, targets)


class Perplexity:
    """The exponential of the mean negative log-likelihood over all tokens of the test set; lower is better.

    Args:
        margin: By how much it may rise without harm.
        ignore_index: The target of tokens that do not count.
        shift: True if logits predict the next token, as those of causal language models do.

    >>> from infobatch.lab.metrics import Perplexity
    >>> metric = Perplexity(margin=0.1)
    >>> metric.update(torch.zeros(2, 5, 8), torch.ones(2, 5, dtype=torch.int64))  # a guess among 8
    >>> round(metric.compute(), 6)
    8.0
    """

    name, unit, higher_is_better = "perplexity", "", False

    def __init__(self, margin: float, ignore_index: int = IGNORE, shift: bool = False) -> None:
        self.margin, self.ignore_index, self.shift = margin, ignore_index, shift
        self.reset()

    def reset(self) -> None:
        """See Metric."""
        self.total, self.count = torch.zeros((), dtype=torch.float64), 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """See Metric.

        Raises:
            InputError: If outputs and targets do not fit.
        """
        logits, tokens = aligned(outputs, targets, self.shift)
        flat = logits.flatten(0, -2).float(), tokens.flatten().long()
        losses = F.cross_entropy(*flat, reduction="none", ignore_index=self.ignore_index)
        self.total = self.total.to(losses.device) + losses.double().sum()
        self.count += int((tokens != self.ignore_index).sum())

    def compute(self) -> float:
        """See Metric.

        Raises:
            InputError: If no token counted.
        """
        if not self.count:
            remedy = f"All targets are ignore_index={self.ignore_index}."
            raise NothingMeasuredError(message("tokens to measure the perplexity on", "none", remedy))
        return float((self.total / self.count).exp())


class ExactMatch:
    """The share of samples all of whose tokens are predicted, each given the ones before it, in percent.

    Samples without a token that counts are left out.

    Args:
        ignore_index: The target of tokens that do not count.
        shift: True if logits predict the next token, as those of causal language models do.
        margin: How many points may be lost.

    >>> from infobatch.lab.metrics import ExactMatch
    >>> metric = ExactMatch()
    >>> logits = torch.eye(3)[torch.tensor([[0, 1], [2, 2]])]  # predicts these tokens
    >>> metric.update(logits, torch.tensor([[0, 1], [2, 1]]))
    >>> metric.compute()
    50.0
    """

    name, unit, higher_is_better = "exact match", PERCENT, True

    def __init__(self, ignore_index: int = IGNORE, shift: bool = False, margin: float = MARGIN) -> None:
        self.ignore_index, self.shift, self.margin = ignore_index, shift, margin
        self.reset()

    def reset(self) -> None:
        """See Metric."""
        self.matches, self.count = 0, 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """See Metric.

        Raises:
            InputError: If outputs and targets do not fit.
        """
        logits, tokens = aligned(outputs, targets, self.shift)
        valid = (tokens != self.ignore_index).reshape(len(tokens), -1)
        fits = (logits.argmax(-1) == tokens).reshape(len(tokens), -1)
        known = valid.any(1)
        self.matches += int(((fits | ~valid).all(1) & known).sum())
        self.count += int(known.sum())

    def compute(self) -> float:
        """See Metric.

        Raises:
            InputError: If no sample counted.
        """
        if not self.count:
            remedy = f"All targets are ignore_index={self.ignore_index}."
            raise NothingMeasuredError(message("samples to measure the exact match on", "none", remedy))
        return 100 * self.matches / self.count
