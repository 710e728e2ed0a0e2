"""Data sets, collate functions and loaders to examine, and shorthands for reading a diagnosis."""

from __future__ import annotations

import itertools

from infobatch.lab.doctor import Check, Diagnosis

N = 60

PRELUDE = '''
import random
import torch, infobatch
from torch import nn
from torch.utils.data import *
from torch.utils.data import DataLoader as Torch

class Pictures(Dataset):
    """60 pictures of 3 x 4 x 4, in 10 classes."""
    def __init__(self, size=60):
        self.size, self.x = size, torch.randn(60, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    def __len__(self):
        return self.size
    def __getitem__(self, i):
        return self.x[i], i % 10

class Augmented(Pictures):
    def __getitem__(self, i):
        return self.x[i] + torch.randn(3, 4, 4), i % 10

class Flipped(Pictures):
    """Flipped, shifted and brightened by chance."""
    def __getitem__(self, i):
        x = self.x[i].flip(-1) if random.random() < 0.5 else self.x[i]
        return x.roll(random.randrange(4), -1) * random.uniform(0.8, 1.2), i % 10

class Cropped(Pictures):
    """Padded, cropped and flipped pictures of pure noise, many more values than are compared."""
    big = torch.rand(60, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    def __getitem__(self, i):
        x = nn.functional.pad(self.big[i], (4, 4, 4, 4))
        x = x.flip(-1) if random.random() < 0.5 else x
        at, to = random.randrange(8), random.randrange(8)
        return x[:, at : at + 32, to : to + 32], i % 10

class Masked(Pictures):
    """Texts with masked words, and no labels."""
    def __getitem__(self, i):
        words = self.x[i].flatten().mul(100).long()
        return torch.where(torch.rand(48) < 0.15, torch.zeros(()).long(), words)

class Partners(Pictures):
    """Each picture with one drawn at random."""
    def __getitem__(self, i):
        return self.x[i], self.x[random.randrange(60)]

class Pairs(Pictures):
    """Ignores its index except for the label."""
    def __getitem__(self, i):
        return self.x[random.randrange(60)], self.x[random.randrange(60)], i % 2

class NoisyPairs(Pairs):
    def __getitem__(self, i):
        a, b, same = super().__getitem__(i)
        return a + torch.randn(3, 4, 4), b + torch.randn(3, 4, 4), same

class Drawn(Pictures):
    def __getitem__(self, i):
        return torch.randn(3, 4, 4), i % 10

class Halves(Pictures):
    def __getitem__(self, i):
        return self.x[i], i % 2

class Constant(Pictures):
    def __getitem__(self, i):
        return self.x[i], 1

class Wide(Pictures):
    def __init__(self):
        super().__init__()
        self.x = torch.randn(60, 8, 2, 2)

class Windows(Pictures):
    def __getitem__(self, i):
        return self.x.flatten()[4 * i : 4 * i + 32], i % 2

class Batches(Pictures):
    def __getitem__(self, i):
        return self.x[i].flatten(1), torch.arange(3) + i

class Indexed(Pictures):
    def __getitem__(self, i):
        return {"picture": self.x[i], "label": i % 10, "index": i}

class Dicts(Pictures):
    def __getitem__(self, i):
        return {"picture": self.x[i].numpy(), "name": f"sample {i}", "label": i % 10, "weight": 0.5}

class Boxes(Pictures):
    """As for detection: pictures of several sizes, each with a dict of its own."""
    def __getitem__(self, i):
        return self.x[i][:, : 2 + i % 3], {"boxes": torch.randn(1 + i % 4, 4), "label": torch.tensor(i)}

class Words(Pictures):
    def __getitem__(self, i):
        return {"ids": list(range(i, i + 1 + i % 7)), "label": i % 2}

class Many(Pictures):
    def __getitems__(self, indices):
        return [self[i] for i in indices]

class Columns(Pictures):
    """Fetches a batch at once, and not as a list."""
    def __getitems__(self, indices):
        return self.x[indices]

class Fewer(Pictures):
    def __getitems__(self, indices):
        return [self[i] for i in indices[1:]]

class Broken(Pictures):
    def __getitem__(self, i):
        if i == 33:
            raise OSError("no such picture")
        return super().__getitem__(i)

class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(9))

class Thing:
    __slots__ = ()

class Things(Pictures):
    def __getitem__(self, i):
        return Thing()

def one_thing(samples):
    return Thing()

def as_it_comes(batch):
    return batch

def lists(samples):
    return tuple(zip(*samples))

def padded(samples):
    ids = [torch.tensor(s["ids"]) for s in samples]
    lengths = torch.tensor([len(i) for i in ids])
    return nn.utils.rnn.pad_sequence(ids, batch_first=True), lengths, torch.tensor([s["label"] for s in samples])

def padded_in_front(samples):
    longest = max(len(s["ids"]) for s in samples)
    return torch.tensor([[-1] * (longest - len(s["ids"])) + s["ids"] for s in samples])

def longest_first(samples):
    return padded(sorted(samples, key=lambda s: -len(s["ids"])))

def scaled(samples):
    x, y = default_collate(samples)
    return (x - 0.5) / 0.25, y

def without_first(samples):
    return default_collate(samples[1:])

def doubled(samples):
    return default_collate([*samples, *samples])

def mixup(samples):
    x, y = default_collate(samples)
    other = torch.randperm(len(x))
    return 0.7 * x + 0.3 * x[other], y, y[other], 0.7

def labels_moved(batch):
    """Put labels into other rows, in tuples and in dicts."""
    where = "label" if isinstance(batch, dict) else 1
    batch = dict(batch) if isinstance(batch, dict) else list(batch)
    batch[where] = batch[where][torch.randperm(len(batch[where]))]
    return batch

def labels_shuffled(samples):
    return labels_moved(default_collate(samples))

def labels_one_hot(samples):
    batch = default_collate(samples)
    where = "label" if isinstance(batch, dict) else 1
    batch[where] = nn.functional.one_hot(batch[where], 10)
    return batch

def labels_one_hot_shuffled(samples):
    return labels_moved(labels_one_hot(samples))

def labels_noisy(samples):
    x, y = default_collate(samples)
    return x, y + 0.1 * torch.randn(len(y), generator=torch.Generator().manual_seed(random.randrange(99)))

def with_negatives(samples):
    x, y = default_collate(samples)
    return x, x.roll(1, 0), y, y.roll(1)

def with_targets_of_contrast(samples):
    x, y = default_collate(samples)
    return x * 2, torch.arange(len(x)) + 100

def backwards(samples):
    return default_collate(samples[::-1])

def scaled_backwards(samples):
    return scaled(samples[::-1])

def mixed(samples):
    x, y = default_collate(samples)
    return 0.5 * x + 0.5 * x[torch.randperm(len(x))], y

class ReadsAhead:
    def __init__(self, loader, by=1):
        self.loader, self.by = loader, by
    def __iter__(self):
        waiting = []
        for batch in self.loader:
            waiting.append(batch)
            if len(waiting) > self.by:
                yield waiting.pop(0)
        yield from waiting

class Misled(ReadsAhead):
    """Reads ahead, and reorders what comes beside a batch."""
    def __iter__(self):
        for batch, beside in super().__iter__():
            yield batch, beside.roll(1)

class InParts:
    def __init__(self, loader):
        self.loader = loader
    def __iter__(self):
        for x, y in self.loader:
            yield x[:3], y[:3]
            if len(x) > 3:
                yield x[3:], y[3:]

class Stops:
    def __init__(self, loader):
        self.loader = loader
    def __iter__(self):
        for number, batch in enumerate(self.loader):
            if number == 3:
                return
            yield batch

class Endless:
    def __init__(self, loader):
        self.loader = loader
    def __iter__(self):
        batch = next(iter(self.loader))
        while True:
            yield batch

class Sorted(Sampler):
    def __init__(self, sampler, batch_size=8):
        self.sampler, self.batch_size = sampler, batch_size
    def __iter__(self):
        order = sorted(self.sampler)
        for at in range(0, len(order), 8):
            yield order[at : at + 8]

class OnItsOwn(Sampler):
    batch_size = 8
    def __iter__(self):
        for at in range(0, 60, 8):
            yield list(range(at, min(at + 8, 60)))

class Moves(Pictures):
    """Shuffles itself now and then."""
    fetched = 0
    def __getitem__(self, i):
        self.fetched += 1
        return super().__getitem__((i + self.fetched // 60) % 60)

def pruned(data=None):
    return infobatch.InfoBatch(data or Pictures(), 8)

def stock(data=None, **given):
    train_data = pruned(data)
    return Torch(train_data, **{"batch_size": 8, "sampler": train_data.sampler, **given})

def ours(data=None, **given):
    return infobatch.DataLoader(pruned(data), **{"batch_size": 8, **given})
'''


numbers = itertools.count()


def named(found: Diagnosis, name: str) -> Check:
    return next(check for check in found.checks if check.name == name)


def not_ok(found: Diagnosis) -> dict[str, str]:
    return {check.name: check.status for check in found.checks if check.status != "ok"}
