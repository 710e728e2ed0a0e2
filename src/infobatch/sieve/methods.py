"""The methods: ways to choose inside the batch, ours and published ones, each with its card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ..checks import check_count, describe
from ..errors import InputError, message
from ..methods import Card
from ..methods.arguments import check_fraction, check_fractions
from . import rules
from .amount import Fixed, Measured, unlearned
from .rules import Choice
from .sieve_method import Seen, SieveMethod, register, with_share

LOOK, PROXY, OWN = "any look", "a proxy", "the model's own losses"


@register(Card("ours", "the easiest half, where the hardest half carries enough of the gradient", LOOK, "all 1"))
def adaptive(
    threshold: float = 0.65,
    *,
    sizes: Sequence[float] = (0.5,),
    every: int = 16,
    mass: Callable[[Tensor], Tensor] = unlearned,
) -> SieveMethod:
    """Keep the hardest rows, as few as carry ``threshold`` of the gradient; otherwise pass the batch on whole.

    Every 16th batch passes whole, and the model's own losses show how much of the gradient the rows carry that the look
    ranks first. A random half of the rows carries half of it.

    Args:
        threshold: The share of the gradient that the rows passed on must carry.
        sizes: The shares of a batch to choose from, besides the whole.
        every: The number of batches from one measurement to the next.
        mass: How large the gradient of a row is, judged from its loss. The default suits cross-entropies; for squared
            errors pass ``torch.sqrt``.

    Returns:
        The method, for ``infobatch.Sieve``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import infobatch
    >>> infobatch.sieve.adaptive(sizes=(0.25, 0.5))
    adaptive(threshold=0.65, sizes=(0.25, 0.5), every=16)
    """
    threshold, chosen = check_fraction("threshold", threshold), check_fractions("sizes", sizes)
    every = check_count("every", every, 2, "Every n-th batch is measured, and passes whole.")
    if not chosen or min(chosen) <= 0:
        raise InputError(message("sizes as shares in (0, 1]", repr(sizes), "For example sizes=(0.25, 0.5)."))
    settings = {"threshold": threshold, "sizes": tuple(sorted(chosen)), "every": every}
    if mass is not unlearned:
        settings["mass"] = getattr(mass, "__name__", type(mass).__name__)

    def amount() -> Measured:
        return Measured(tuple(sorted(chosen)), threshold, every, mass)

    return SieveMethod("adaptive", settings, _hardest, amount)


@register(Card("cifar10-airbench (Jordan 2024)", "the easiest rows", LOOK, "all 1"))
def hardest(
    keep: float = 0.5, *, class_floor: float = 0.0, labels: Callable[[Any], Tensor] | None = None
) -> SieveMethod:
    """Keep the rows of the highest losses.

    Args:
        keep: The share of a batch to pass on.
        class_floor: Of each class in the batch, keep at least this share of its rows.
        labels: With a class floor, a function that returns the classes of a batch.

    Returns:
        The method, for ``infobatch.Sieve``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import torch, infobatch
    >>> sieve = infobatch.Sieve(lambda losses: losses, infobatch.sieve.hardest(keep=0.5))
    >>> sieve(torch.tensor([0.1, 2.0, 0.3, 1.0]))  # the rows passed on, here the losses themselves, and their weights
    (tensor([2., 1.]), tensor([1., 1.]))
    """
    keep = check_fraction("keep", keep)
    if not class_floor and labels is None:
        return with_share("hardest", keep, _hardest)
    floor = check_fraction("class_floor", class_floor)
    if labels is None or floor > keep:
        got = "no labels" if labels is None else f"class_floor={floor} above keep={keep}"
        remedy = "For example hardest(0.5, class_floor=0.25, labels=lambda batch: batch[1])."
        raise InputError(message("a class floor of at most keep, with labels", got, remedy))

    def rule(seen: Seen) -> Choice:
        classes = check_classes(labels(seen.batch), seen.losses)
        return rules.choose_hardest_with_floor(seen.losses, seen.k, classes, floor)

    return with_share("hardest", keep, rule, class_floor=floor)


@register(Card("ours", "rows at random, more likely the lower their loss", LOOK, "unbiased"))
def lot(keep: float = 0.7, *, floor: float = 0.25) -> SieveMethod:
    """Sample rows at random, with chances that rise with the loss, and weight them by 1/chance.

    Args:
        keep: The share of a batch to pass on.
        floor: The least chance of a row, as a share of the mean chance; it bounds the weights.

    Returns:
        The method, for ``infobatch.Sieve``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import torch, infobatch
    >>> sieve = infobatch.Sieve(lambda losses: losses, infobatch.sieve.lot(keep=0.5, floor=1.0))
    >>> kept, weight = sieve(torch.tensor([0.1, 2.0, 0.3, 1.0]))  # with a floor of 1 all chances are 1/2
    >>> weight
    tensor([2., 2.])
    """
    keep, floor = check_fraction("keep", keep), check_fraction("floor", floor)

    def rule(seen: Seen) -> Choice:
        return rules.choose_by_lot(seen.losses, seen.k, seen.generator, floor)

    return with_share("lot", keep, rule, unbiased=True, floor=floor)


@register(Card("ours", "the easiest rows and the very hardest", LOOK, "all 1"))
def band(keep: float = 0.5, *, skip: float = 0.1) -> SieveMethod:
    """Leave out the rows of the very highest losses, which may be wrong labels, and keep the next hardest.

    Args:
        keep: The share of a batch to pass on.
        skip: The share left out at the hard end.

    Returns:
        The method, for ``infobatch.Sieve``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import torch, infobatch
    >>> sieve = infobatch.Sieve(lambda losses: losses, infobatch.sieve.band(keep=0.5, skip=0.25))
    >>> sieve(torch.tensor([0.1, 2.0, 0.3, 1.0]))
    (tensor([0.3000, 1.0000]), tensor([1., 1.]))
    """
    keep, skip = check_fraction("keep", keep), check_fraction("skip", skip)
    if keep + skip > 1:
        raise InputError(message("keep + skip of at most 1", f"{keep} + {skip}", "Lower one of them."))

    def rule(seen: Seen) -> Choice:
        return rules.choose_band(seen.losses, seen.k, round(skip * len(seen.losses)))

    return with_share("band", keep, rule, skip=skip)


@register(Card("InfoBatch (Qin 2024), inside the batch", "a random share of the rows below the mean", LOOK))
def below_mean(keep: float = 0.7, *, floor: float = 0.25) -> SieveMethod:
    """Keep the rows at or above the mean loss, and a random sample of those below, as many as ``keep`` leaves room for.

    ``infobatch.methods.repb`` compares with the mean of the batch, too, but decides with it about the next epoch.

    Args:
        keep: The share of a batch to pass on.
        floor: The least chance of a row, as a share of the mean chance; it bounds the weights.

    Returns:
        The method, for ``infobatch.Sieve``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import torch, infobatch
    >>> sieve = infobatch.Sieve(lambda losses: losses, infobatch.sieve.below_mean(keep=0.75))
    >>> kept, weight = sieve(torch.tensor([0.1, 2.0, 0.1, 1.0]))  # both above 0.8 at weight 1, one of the others at 2
    >>> weight.sum(), sieve.reduce(kept)  # the mean loss of the whole batch is 0.8
    (tensor(4.), tensor(0.8000))
    """
    keep, floor = check_fraction("keep", keep), check_fraction("floor", floor)

    def rule(seen: Seen) -> Choice:
        return rules.choose_below_mean(seen.losses, seen.k, seen.generator, floor)

    return with_share("below_mean", keep, rule, unbiased=True, floor=floor)


@register(Card("control", "rows at random", "no look", "all 1", "nothing"))
def random_rows(keep: float = 0.5) -> SieveMethod:
    """Keep a random part of each batch: the control that shows what a look adds.

    Args:
        keep: The share of a batch to pass on.

    Returns:
        The method, for ``infobatch.Sieve``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import torch, infobatch
    >>> sieve = infobatch.Sieve(None, infobatch.sieve.random_rows(keep=0.5))
    >>> batch, weight = sieve(torch.rand(32, 8))
    >>> len(batch)
    16
    """
    keep = check_fraction("keep", keep)
    return SieveMethod("random_rows", {"keep": keep}, _random, lambda: Fixed(keep), needs_look=False)


@register(Card("Selective Backprop (Jiang 2019), as in Composer", "rows at random, by rank of loss", OWN, "all 1/keep"))
def selective_backprop(keep: float = 0.5, *, begin: float = 0.5, end: float = 0.9, whole_every: int = 2) -> SieveMethod:
    """Sample rows in proportion to (percentile of the loss) ** (1/keep - 1), between half and 0.9 of the run.

    Args:
        keep: The share of a batch to pass on.
        begin: The share of the run at which it begins.
        end: The share of the run at which it ends.
        whole_every: Every n-th batch passes whole; 0 for none.

    Returns:
        The method, for ``infobatch.Sieve``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import torch, infobatch
    >>> sieve = infobatch.Sieve(lambda losses: losses, infobatch.sieve.selective_backprop(), num_steps=10)
    >>> [len(sieve(losses)[0]) for losses in torch.rand(10, 32)]
    [32, 32, 32, 32, 32, 16, 32, 16, 32, 32]
    """
    keep, (begin, end) = check_fraction("keep", keep), check_fractions("begin, end", (begin, end))
    whole_every = check_count("whole_every", whole_every, 0, "Every n-th batch passes whole; 0 for none.")
    check_window(begin, end)

    def rule(seen: Seen) -> Choice:
        return _as_mean(rules.choose_by_percentile(seen.losses, seen.k, seen.generator, 1 / keep - 1), len(seen.losses))

    settings = {"keep": keep, "begin": begin, "end": end, "whole_every": whole_every}
    amount = Fixed(keep, begin, end, whole_every)
    return SieveMethod("selective_backprop", settings, rule, lambda: amount, is_windowed=(begin, end) != (0.0, 1.0))


@register(Card("RHO-LOSS (Mindermann 2022)", "all but the most learnable rows", "Reference of Own", "all 1/keep"))
def rho_loss(keep: float = 0.1) -> SieveMethod:
    """Keep the rows whose loss exceeds that of a reference network by most; needs ``Reference`` as its look.

    Args:
        keep: The share of a batch to pass on.

    Returns:
        The method, for ``infobatch.Sieve``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import torch, infobatch
    >>> sieve = infobatch.Sieve(lambda losses: losses, infobatch.sieve.rho_loss(keep=0.5))
    >>> sieve(torch.tensor([0.1, 2.0, 0.3, 1.0]))  # weights 1/keep: the step is the mean over the rows passed on
    (tensor([2., 1.]), tensor([2., 2.]))
    """

    def rule(seen: Seen) -> Choice:
        return _as_mean(rules.choose_hardest(seen.losses, seen.k), len(seen.losses))

    return with_share("rho_loss", check_fraction("keep", keep), rule)


@register(Card("ES, the batch level of ESWP (2025)", "rows at random, by loss", "Remembered of Own", "all 1/keep"))
def es(keep: float = 0.5, *, begin: float = 0.0, end: float = 1.0) -> SieveMethod:
    """Sample rows in proportion to b1 * s + (1 - b1) * loss, where s is a slow average over epochs.

    The look is ``Remembered(Own(model, criterion), train_data, share=b1, column="slow")``, with ``train_data`` a
    ``Pruned`` data set of the method ``eswp``, which is the other of the two levels; alone, use ``Own``.

    Args:
        keep: The share of a batch to pass on.
        begin: The share of the run at which it begins.
        end: The share of the run at which it ends; the source trains on full data at both ends.

    Returns:
        The method, for ``infobatch.Sieve``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import torch, infobatch
    >>> sieve = infobatch.Sieve(lambda losses: losses, infobatch.sieve.es(keep=0.5))
    >>> sieve(torch.tensor([0.0, 2.0, 0.0, 1.0]))  # a loss of 0 is drawn only if there is nothing else
    (tensor([2., 1.]), tensor([2., 2.]))
    """
    keep, (begin, end) = check_fraction("keep", keep), check_fractions("begin, end", (begin, end))
    check_window(begin, end)

    def rule(seen: Seen) -> Choice:
        return _as_mean(rules.choose_in_proportion(seen.losses, seen.k, seen.generator), len(seen.losses))

    amount, settings = Fixed(keep, begin, end), {"keep": keep, "begin": begin, "end": end}
    return SieveMethod("es", settings, rule, lambda: amount, is_windowed=(begin, end) != (0.0, 1.0))


@register(
    Card("Co-teaching (Han 2018), its filter", "the hardest rows, which may be wrong labels", PROXY, "all 1/keep")
)
def small_loss(keep: float = 0.8, *, begin: float = 0.1) -> SieveMethod:
    """Keep the rows of the lowest losses, for data with wrong labels. On clean data it harms.

    Args:
        keep: The share of a batch to pass on: one minus the share of wrong labels.
        begin: The share of the run after which to begin, when the look can tell.

    Returns:
        The method, for ``infobatch.Sieve``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import torch, infobatch
    >>> sieve = infobatch.Sieve(lambda losses: losses, infobatch.sieve.small_loss(keep=0.5, begin=0.0))
    >>> sieve(torch.tensor([0.1, 2.0, 0.3, 1.0]))
    (tensor([0.1000, 0.3000]), tensor([2., 2.]))
    """
    keep, (begin,) = check_fraction("keep", keep), check_fractions("begin", (begin,))

    def rule(seen: Seen) -> Choice:
        return _as_mean(rules.choose_easiest(seen.losses, seen.k), len(seen.losses))

    amount = Fixed(keep, begin)
    settings = {"keep": keep, "begin": begin}
    return SieveMethod("small_loss", settings, rule, lambda: amount, is_windowed=begin > 0)


@register(
    Card("Rho-1 (Lin 2024)", "tokens a reference finds as hard", "Reference of Own, per token", "all 1", "tokens")
)
def tokens(valid: Callable[[Any], Tensor], keep: float = 0.6) -> SieveMethod:
    """Keep the hardest tokens: the batch stays whole, and the other tokens get weight 0.

    This changes what is learned and saves no compute: the model still runs on all tokens.

    Args:
        valid: A function that returns which tokens of a batch count, in the shape of the losses.
        keep: The share of the valid tokens.

    Returns:
        The method, for ``infobatch.Sieve``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import torch, infobatch
    >>> sieve = infobatch.Sieve(lambda losses: losses, infobatch.sieve.tokens(lambda losses: losses >= 0, keep=0.5))
    >>> losses, weight = sieve(torch.tensor([[0.1, 2.0, 0.3], [1.0, -1.0, -1.0]]))  # -1: not to be predicted
    >>> weight
    tensor([[0., 1., 0.],
            [1., 0., 0.]])
    """
    if not callable(valid):
        remedy = 'For example tokens(lambda batch: batch["labels"] != -100).'
        raise InputError(message("a function that returns which tokens count", type(valid).__name__, remedy))
    amount = Fixed(check_fraction("keep", keep))
    return SieveMethod("tokens", {"keep": keep}, _hardest, lambda: amount, valid_tokens=valid)


def check_window(begin: float, end: float) -> None:
    """Check that a method works in a part of the run."""
    if not begin < end:
        raise InputError(message("begin before end", f"{begin} and {end}", "Both are shares of the run."))


def _hardest(seen: Seen) -> Choice:
    return rules.choose_hardest(seen.losses, seen.k)


def _random(seen: Seen) -> Choice:
    return rules.choose_random(seen.losses, seen.k, seen.generator)


def check_classes(classes: Any, losses: Tensor) -> Tensor:
    """Return the class of each row as int64, on the device of the losses."""
    is_usable = isinstance(classes, Tensor) and classes.shape == losses.shape
    if not is_usable or classes.is_floating_point() or classes.is_complex():
        expected = f"labels(batch) as integers of shape {list(losses.shape)}, one class per row"
        raise InputError(message(expected, describe(classes), "For example labels=lambda batch: batch[1]."))
    found: Tensor = classes.to(losses.device).long()
    return found


def _as_mean(choice: Choice, size: int) -> Choice:
    """Weigh rows so that the step is the mean over the rows passed on, as these methods define it."""
    return Choice(choice.rows, choice.weights * (size / max(len(choice.rows), 1)))
