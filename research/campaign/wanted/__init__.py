"""The queues of the campaign, most informative first. A run is its settings; one with a record is not run again.

little      a small ResNet on 3,000 small images, 30 epochs, 20 seeds, on a CPU: which experiments deserve more
again       what that left open, with new seeds
crops       the same task with crops and flips, 60 epochs: no net memorises it
rates       the same at an eight times larger learning rate: how much growth it tolerates
tails       the same with a short last batch weighted by its samples
unweighted_crops  the same with methods that favour high losses without reweighting
noisy       the same with a fifth of the labels drawn at random
adamw       the same with AdamW, at four rates
parts       the same: Tables 4 and 5 and Figure 3 on a small task
optimizers  the first, with AdamW, LARS and LAMB
screen      a small net on CIFAR-100, 30 epochs: it underfits, so little replaced it
short       ResNet-18, 30 epochs: the headline, shortened
tables      the same: Tables 4 and 5 of the paper, and AdamW
layerwise   the same with LARS and LAMB: Table 7
digits, fashion   every method on small data
mlp         a few of them at five rates, with SGD and AdamW
unweighted  the same with methods that favour high losses without reweighting
headline    ResNet-18, 200 epochs: the paper's setting, the same for all
controls    the same at 0.085, where full data do better
tuned       more seeds of that, and a shorter run
weighed     the same with a short last batch weighted by its samples
faster      that at 0.17: is 0.085 the best rate?
unweighted_cifar  that and 0.085 with methods that favour high losses without reweighting
published   the papers' own cells: full data at 0.03, and Table 4 and Figure 3 at 0.05
alike       other ways to save as much
precise     more seeds of its first rows
growth      what should grow: the learning rate, the loss or nothing, on CIFAR-10 and CIFAR-100
cifar10     the headline on CIFAR-10
high        the same at 0.2, the rate the paper names

In tails, noisy, digits, fashion, weighed, faster and the unweighted ones a short last batch is weighted by its
samples; the others were recorded while it counted as a full one. New runs always weight it by its samples:
`run.py --weighed` trains the pruned runs of a queue that way even if they have such an older record. Runs that are no
longer trained (a growing learning rate, the experiments in research/ideas) are skipped.
"""

from __future__ import annotations

from .cifar import (
    alike,
    cifar10,
    controls,
    faster,
    growth,
    headline,
    high,
    layerwise,
    precise,
    published,
    screen,
    short,
    tables,
    tuned,
    unweighted_cifar,
    weighed,
)
from .little_task import adamw, again, crops, little, noisy, optimizers, parts, rates, tails, unweighted_crops
from .queue import TINY as TINY
from .small import digits, fashion, mlp, unweighted

QUEUES = {
    queue.__name__: queue
    for queue in (
        little,
        again,
        crops,
        rates,
        tails,
        unweighted_crops,
        noisy,
        adamw,
        parts,
        optimizers,
        screen,
        short,
        tables,
        layerwise,
        headline,
        controls,
        tuned,
        weighed,
        faster,
        unweighted_cifar,
        published,
        alike,
        precise,
        growth,
        cifar10,
        high,
        digits,
        fashion,
        mlp,
        unweighted,
    )
}
