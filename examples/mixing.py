"""Classification as in timm's recipes: MixUp or CutMix, random erasing, label smoothing, drop-path and warm-up."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

import infobatch
from infobatch.adapters import mix_targets, mixed_loss

BATCH, CLASSES = 64, 10


class Block(nn.Module):
    """A residual block that a part of the samples of a batch skips: drop-path."""

    def __init__(self, width, drop_path):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.GELU())
        self.drop_path = drop_path

    def forward(self, x):
        stays = torch.rand(len(x), 1, 1, 1, device=x.device) >= self.drop_path
        return x + self.body(x) * (stays / (1 - self.drop_path) if self.training else 1)


def mix(x, y):
    """Mix each image with the one in the same place of the reversed batch, as timm does, by MixUp or CutMix."""
    lam, other, size = torch.rand(()), x.flip(0), x.shape[3]  # Beta(1, 1)
    if torch.rand(()) < 0.5:
        x = lam * x + (1 - lam) * other
    else:
        inside = in_square(size, (size * (1 - lam).sqrt()).round())
        x, lam = torch.where(inside, other, x), 1 - inside.float().mean()
    return x, mix_targets(y, CLASSES, lam, smoothing=0.1), lam


def in_square(size, side, count=1):
    """Return the pixels of a random square in each of some images: [count, 1, size, size]."""
    low = (torch.rand(2, count, 1, 1, 1) * (size - side + 1)).floor()
    rows, columns = torch.arange(size)[:, None], torch.arange(size)
    return (rows >= low[0]) & (rows < low[0] + side) & (columns >= low[1]) & (columns < low[1] + side)


def train_once(method):
    """Return the share of the samples saved, and the accuracy on the held-out images."""
    torch.manual_seed(0)
    body = [nn.Conv2d(1, 32, 3, padding=1), Block(32, 0.0), nn.MaxPool2d(2), Block(32, 0.1)]
    model = nn.Sequential(*body, nn.Flatten(), nn.Linear(32 * 4 * 4, CLASSES))
    train_data = infobatch.Pruned(torch.utils.data.TensorDataset(images[TRAIN], labels[TRAIN]), method, options.epochs)
    steps = infobatch.full_steps(train_data, BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.05)
    cosine = CosineAnnealingLR(optimizer, T_max=(options.epochs - 1) * steps)
    warm_up = SequentialLR(optimizer, [LinearLR(optimizer, 0.01, total_iters=steps), cosine], milestones=[steps])
    scheduler = infobatch.pace(warm_up, train_data, steps)
    # With timm: mixup = timm.data.Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=CLASSES)
    for _ in range(options.epochs):
        for x, y in infobatch.DataLoader(train_data, batch_size=BATCH):  # timm needs drop_last=True
            mixed, targets, lam = mix(x, y)  # with timm: mixed, targets = mixup(x, y); lam = None
            erased = in_square(8, side=2, count=len(x)) & (torch.rand(len(x), 1, 1, 1) < 0.25)
            outputs = model(torch.where(erased, torch.randn_like(x), mixed))
            weights = train_data.plan().weights_of(train_data.batch_indices)  # a row needs those of both its samples
            loss, score = mixed_loss(outputs, targets, y, weights=weights, lam=lam)
            optimizer.zero_grad()
            train_data.update(loss, score=score).backward()
            optimizer.step()
            scheduler.step()
    return train_data.history[-1].saved_so_far, (model.eval()(images[TEST]).argmax(1) == labels[TEST]).double().mean()


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=24, help="epochs of each run, 8 or more (default 24)")
options = parser.parse_args()
images, labels = map(torch.tensor, load_digits(return_X_y=True))
images = images.float().view(-1, 1, 8, 8) / 8 - 1
TEST, TRAIN = slice(len(images) // 5), slice(len(images) // 5, None)
for name, method in {"full data": infobatch.methods.full(), "InfoBatch": infobatch.methods.infobatch()}.items():
    print("{:9}  {:5.1%} of the samples saved, {:.1%} right".format(name, *train_once(method)))
