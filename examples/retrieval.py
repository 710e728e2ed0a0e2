"""Retrieval with two towers: the loss of each pair has all others of its batch as negatives.

The pairs are the upper and the lower halves of scikit-learn's digits. The recall is the share of the upper halves
whose own lower half is among the ten most similar ones, of all held-out images.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn

import infobatch
from infobatch.adapters import contrastive_loss

BATCH, RANKS = 64, 10


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.towers = nn.ModuleList(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 64)) for _ in range(2))
        self.scale = nn.Parameter(torch.tensor(10.0).log())

    def forward(self, *halves):
        """Return the scaled similarities of all pairs: rows are upper halves, columns lower ones."""
        rows, columns = (nn.functional.normalize(net(x)) for net, x in zip(self.towers, halves, strict=True))
        return self.scale.exp() * rows @ columns.T


def train_once(method):
    """Return the share of the samples saved, and the recall."""
    torch.manual_seed(0)
    model = Towers()
    pairs = torch.utils.data.TensorDataset(upper[TRAIN], lower[TRAIN])
    train_data = infobatch.Pruned(pairs, method, options.epochs, in_batch_loss=True)  # short batches give no scores
    steps = infobatch.full_steps(train_data, BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.epochs * steps)
    scheduler = infobatch.pace(cosine, train_data, steps)
    for _ in range(options.epochs):
        for one, other in infobatch.DataLoader(train_data, batch_size=BATCH):
            similarity = model(one, other)
            weights = train_data.plan().weights_of(train_data.batch_indices)  # negatives count by their weights, too
            loss, score = contrastive_loss(similarity, similarity.T, weights=weights)
            optimizer.zero_grad()
            train_data.update(loss, score=score).backward()
            optimizer.step()
            scheduler.step()
    with torch.no_grad():
        ranks = model(upper[TEST], lower[TEST]).argsort(1, descending=True)
    found = (ranks[:, :RANKS] == torch.arange(len(ranks))[:, None]).any(1).double().mean().item()
    return train_data.history[-1].saved_so_far, found


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=32, help="epochs of each run, 8 or more (default 32)")
options = parser.parse_args()
images = torch.tensor(load_digits().images).float() / 16
upper, lower = images[:, :4].flatten(1), images[:, 4:].flatten(1)
TEST, TRAIN = slice(len(images) // 5), slice(len(images) // 5, None)
print(f"by chance                                recall {RANKS / len(images[TEST]):.1%}")
for name, method in {"full data": infobatch.methods.full(), "InfoBatch": infobatch.methods.infobatch()}.items():
    print("{:9}  {:5.1%} of the samples saved, recall {:.1%}".format(name, *train_once(method)))
