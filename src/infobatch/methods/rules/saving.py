"""Set the saving instead of the threshold: a controller prunes as much as it takes to reach it by the end."""

from __future__ import annotations

import math
from functools import partial

from ...errors import InputError, message
from ..arguments import check_open_fraction, check_ratio
from ..cuts import ByCuts, Cut, Stats, beyond
from ..method import RANK, Card, Method, Moment, Schedule, after, all_of, register, until

MOST = 0.9  # the largest share of the scored samples pruned in one epoch: no weight exceeds 10


@ByCuts
def spend(stats: Stats, moment: Moment, *, saving: float, ratio: float) -> list[Cut]:
    """Prune what the whole run needs to end at ``saving``, evenly over the pruning epochs still to come.

    The threshold follows from the count: of the count/r lowest samples a share r is pruned, with weight 1/(1-r).
    Where count/r is more than there are, all samples lie below the threshold, and a larger share of them is pruned.
    """
    saved = moment.epoch * stats.size - stats.planned
    drop = round((saving * moment.num_epochs * stats.size - saved) / moment.pruning_left)
    drop = min(drop, math.floor(MOST * stats.known))  # later epochs make up for samples without a score
    if drop <= 0:
        return []
    edge = stats.nth(min(stats.known, math.ceil(drop / ratio)))
    return [Cut(-math.inf, beyond(edge), drop=drop)]  # ratio < 1: more samples lie below it than are pruned


@register(Card("this package", "as many low losses as it takes to save a share of the whole run", RANK))
def saving(share: float = 0.4, delta: float = 0.875, *, ratio: float = 0.5, warmup: int = 0) -> Method:
    """Leave out a given share of the whole run: a controller sets the threshold of each epoch accordingly.

    Args:
        share: The share of all samples of all epochs to leave out.
        delta: Prune while epoch < delta * num_epochs.
        ratio: The share pruned among the samples below the threshold (the paper's r). A smaller one raises the
            threshold and lowers the weights. If the saving needs more than this share of all samples, the share rises.
        warmup: The number of full epochs at the start, beyond the first.

    Returns:
        The method, for ``infobatch.Pruned``.

    Raises:
        InputError: If an argument is out of its range; from ``Pruned``, if the run cannot save as much.

    >>> import infobatch
    >>> infobatch.methods.saving(share=0.4)
    saving(share=0.4, delta=0.875, ratio=0.5, warmup=0)
    """
    share, ratio = check_open_fraction("saving", share), check_ratio(ratio)
    if ratio == 0:
        raise InputError(message("a ratio above 0", "0", "Leave it out: the default is 0.5."))
    schedule = all_of(until(delta), after(warmup))
    settings = {"share": share, "delta": float(delta), "ratio": ratio, "warmup": int(warmup)}
    policy = partial(spend, saving=share, ratio=ratio)
    return Method("saving", settings, policy, schedule, check_epochs=partial(_check_reachable, share=share))


def _check_reachable(num_epochs: int, schedule: Schedule, share: float) -> None:
    pruning = sum(schedule(Moment(epoch, num_epochs)) for epoch in range(1, num_epochs))
    most = MOST * pruning / num_epochs
    if share > most:
        expected = (
            f"a saving of at most {most:.3f} of the run (epoch 0 and the annealing epochs are full, and no epoch drops "
            f"more than {MOST:.0%}: {pruning} of {num_epochs} epochs prune)"
        )
        raise InputError(message(expected, f"saving={share}", "Ask for less, train longer, or raise delta."))
