"""Draw the picture of the README: the losses of one real epoch before pruning, pruned, and reweighted.

    python tools/readme_picture.py            # train and write docs/images/pruning.svg
    python tools/readme_picture.py -o FILE    # write it elsewhere

Trains a small convolutional network on scikit-learn's digits (1,257 training images) with InfoBatch for a few epochs,
then draws the losses that the next plan is made from. Takes seconds on a CPU. Needs infobatch[lab].
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import infobatch

TARGET = Path(__file__).resolve().parents[1] / "docs" / "images" / "pruning.svg"
NUM_EPOCHS, PLANNED_EPOCH, BATCH_SIZE = 16, 4, 64

BINS_BELOW, BINS_ABOVE, PER_DECADE = 16, 8, 4
"""The axis of the histograms: bins below and above the mean loss, and bins per power of ten."""
BINS = BINS_BELOW + BINS_ABOVE
PANEL_WIDTH, PANEL_GAP, PANEL_HEIGHT, TOP, LEFT = 236, 22, 120, 50, 8


@dataclass(frozen=True)
class Epoch:
    """What a plan was made from, and the plan: one entry per sample of the data set."""

    losses: torch.Tensor
    weights: torch.Tensor
    """0 for a sample that is left out."""

    @property
    def mean(self) -> float:
        """The mean loss, below which samples may be left out."""
        return self.losses.mean().item()


def train(seed: int = 0) -> Epoch:
    """Train for a few epochs and return the losses and weights of the plan that follows."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    images, labels = map(torch.tensor, load_digits(return_X_y=True))
    images = images.float().reshape(-1, 1, 8, 8) / 16
    chosen, _ = train_test_split(range(len(labels)), test_size=0.3, stratify=labels, random_state=0)
    data = infobatch.InfoBatch(torch.utils.data.TensorDataset(images[chosen], labels[chosen]), NUM_EPOCHS, seed=seed)
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 4 * 4, 10)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    loader = infobatch.DataLoader(data, batch_size=BATCH_SIZE)
    for _ in range(PLANNED_EPOCH):
        for inputs, targets in loader:
            loss = data.update(nn.functional.cross_entropy(model(inputs), targets, reduction="none"))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    plan = data.plan()
    return Epoch(data.scores.clone(), plan.table.clone())


def bin_of(loss: float, mean: float) -> float:
    """Return the position of a loss on the axis, in bins; the mean lies on the edge between two.

    >>> bin_of(0.05, mean=0.05) == BINS_BELOW
    True
    """
    return math.log10(max(loss, 1e-30) / mean) * PER_DECADE + BINS_BELOW


def histogram(epoch: Epoch, counts: torch.Tensor) -> list[float]:
    """Return the sum of ``counts`` in each bin; what lies beyond the axis goes into its outermost bins."""
    heights = [0.0] * BINS
    for loss, count in zip(epoch.losses.tolist(), counts.tolist(), strict=True):
        heights[min(max(math.floor(bin_of(loss, epoch.mean)), 0), BINS - 1)] += count
    return heights


STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #57606a }
  .title { font-weight: 600; font-size: 15px; fill: #1f2328 }
  .low { fill: #2f81f7 } .high { fill: #8b949e } .ghost { fill: none; stroke: #8b949e; stroke-dasharray: 2 2 }
  .axis { stroke: #8b949e } .mean { stroke: #d1242f; stroke-width: 1.5 } .red { fill: #d1242f }
  @media (prefers-color-scheme: dark) {
    text { fill: #9198a1 } .title { fill: #f0f6fc } .mean { stroke: #ff7b72 } .red { fill: #ff7b72 }
  }
"""


@dataclass(frozen=True)
class Panel:
    """One histogram: its bars, and a dotted outline of what they were before."""

    title: str
    note: str
    bars: Sequence[float]
    outline: Sequence[float]


def _bar(kind: str, left: float, height: float) -> str:
    width, top = PANEL_WIDTH / BINS - 1, TOP + PANEL_HEIGHT - height
    return f'<rect class="{kind}" x="{left + 0.5:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _draw_panel(panel: Panel, left: float, mean: float, scale: float) -> list[str]:
    bottom, width = TOP + PANEL_HEIGHT, PANEL_WIDTH / BINS
    parts = [f'<text class="title" x="{left}" y="18">{panel.title}</text>']
    parts.append(f'<text x="{left}" y="37">{panel.note}</text>')
    for number, (count, before) in enumerate(zip(panel.bars, panel.outline, strict=True)):
        if before > count:
            parts.append(_bar("ghost", left + number * width, scale * before))
        if count:
            parts.append(_bar("low" if number < BINS_BELOW else "high", left + number * width, scale * count))
    cut = left + BINS_BELOW * width
    parts.append(f'<line class="axis" x1="{left}" y1="{bottom}" x2="{left + PANEL_WIDTH}" y2="{bottom}"/>')
    parts.append(f'<line class="mean" x1="{cut:.1f}" y1="{TOP}" x2="{cut:.1f}" y2="{bottom}"/>')
    parts.append(f'<text class="red" x="{cut + 5:.1f}" y="{TOP + 12}">mean loss</text>')
    for tick in (0.0001, 0.01, 1.0):
        at = left + bin_of(tick, mean) * width
        parts.append(f'<text x="{at:.1f}" y="{bottom + 17}" text-anchor="middle">{tick:g}</text>')
    return parts


def draw(epoch: Epoch) -> str:
    """Return the picture as SVG; it follows the reader's light or dark setting."""
    size, kept, heaviest = len(epoch.losses), int((epoch.weights > 0).sum()), epoch.weights.max().item()
    before = histogram(epoch, torch.ones_like(epoch.losses))
    pruned = histogram(epoch, (epoch.weights > 0).float())
    reweighted = histogram(epoch, epoch.weights)
    panels = [
        Panel("Before", f"the last known loss of {size:,} samples", before, before),
        Panel("Pruned", f"{kept:,} remain: half of the low ones", pruned, before),
        Panel("Reweighted", f"each low one counts {heaviest:.2g} times", reweighted, reweighted),
    ]
    scale = PANEL_HEIGHT / max(*before, *reweighted)
    drawn = [
        part
        for number, panel in enumerate(panels)
        for part in _draw_panel(panel, LEFT + number * (PANEL_WIDTH + PANEL_GAP), epoch.mean, scale)
    ]
    width, height = 2 * LEFT + 3 * PANEL_WIDTH + 2 * PANEL_GAP, TOP + PANEL_HEIGHT + 42
    label = "Three histograms of losses: all samples; half of those below the mean left out; the rest reweighted."
    axis = f'<text x="{width / 2}" y="{height - 6}" text-anchor="middle">loss per sample, log scale</text>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *drawn, axis, "</svg>", ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=TARGET, help="the file to write")
    target = parser.parse_args(arguments).output
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(draw(train()))
    print(target)


if __name__ == "__main__":
    main()
