"""Semantic segmentation with a small SegFormer of transformers: one loss per image, from those pixels that count."""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from transformers import SegformerConfig, SegformerForSemanticSegmentation

import infobatch
from infobatch.adapters import segmentation_loss

SIZE, BATCH, IGNORED = 32, 16, 255


def make(count):
    """Return noisy images of a rectangle and a disc, and the class of each pixel; their outlines are not labeled."""
    generator, axis = torch.Generator().manual_seed(0), torch.arange(SIZE)
    middle = torch.randint(8, SIZE - 8, (count, 2, 2, 1), generator=generator)
    radius = torch.randint(4, 9, (count, 2, 1, 1), generator=generator)
    y, x = (axis - middle).abs().float().unbind(2)
    rectangle, disc = torch.maximum(y[:, 0, :, None], x[:, 0, None]), torch.hypot(y[:, 1, :, None], x[:, 1, None])
    distance = torch.stack([rectangle, disc], 1) - radius
    labels = torch.where(distance[:, 1] < 0, 2, torch.where(distance[:, 0] < 0, 1, 0))
    shades = torch.tensor([[0.0, 0.0, 0.0], [0.5, 0.2, 0.0], [0.2, 0.5, 0.0]])[labels].movedim(3, 1)
    labels[((distance >= 0) & (distance < 1)).any(1)] = IGNORED
    return shades + 0.3 * torch.randn(shades.shape, generator=generator), labels


def read(folder):
    masks = sorted(Path(folder, "masks").glob("*.png"))
    images = (Image.open(next(Path(folder, "images").glob(f"{mask.stem}.*"))).convert("RGB") for mask in masks)
    x = np.stack([np.array(image.resize((SIZE, SIZE))) for image in images])
    y = np.stack([np.array(Image.open(mask).resize((SIZE, SIZE), Image.Resampling.NEAREST)) for mask in masks])
    return torch.tensor(x).movedim(3, 1) / 255, torch.tensor(y).long()


def train_once(method, use_sieve):
    torch.manual_seed(0)
    config = {"hidden_sizes": [16, 32], "depths": [1, 1], "num_attention_heads": [1, 2], "sr_ratios": [2, 1]}
    config |= {"num_encoder_blocks": 2, "patch_sizes": [3, 3], "strides": [2, 2], "mlp_ratios": [2, 2]}
    model = SegformerForSemanticSegmentation(SegformerConfig(**config, decoder_hidden_size=32, num_labels=CLASSES))
    small = nn.Sequential(nn.Conv2d(3, 8, 5, 2, 2), nn.ReLU(), nn.Conv2d(8, CLASSES, 3, padding=1))
    proxy = infobatch.sieve.Proxy(small, losses=lambda net, batch: segmentation_loss(net(batch[0]), batch[1]).loss)
    sieve = infobatch.Sieve(proxy, infobatch.sieve.lot(keep=0.7))  # it draws by the loss, with weights 1 / chance
    train_data = infobatch.Pruned(torch.utils.data.TensorDataset(images[TRAIN], labels[TRAIN]), method, options.epochs)
    steps = infobatch.full_steps(train_data, BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.epochs * steps)
    scheduler = infobatch.pace(cosine, train_data, steps)
    for _ in range(options.epochs):
        for x, y in infobatch.DataLoader(train_data, batch_size=BATCH):
            x, y, _ = sieve(x, y) if use_sieve else (x, y, None)  # only the rows that are worth a step
            loss, score = segmentation_loss(model.train()(x).logits, y, ignore_index=IGNORED)
            loss, score = sieve.expand(loss) if use_sieve else (loss, score)
            optimizer.zero_grad()
            train_data.update(loss, score=score).backward()
            optimizer.step()
            scheduler.step()
    with torch.no_grad():
        logits = nn.functional.interpolate(model.eval()(images[TEST]).logits, size=(SIZE, SIZE), mode="bilinear")
    found, truth = (one[labels[TEST] != IGNORED] for one in (logits.argmax(1), labels[TEST]))
    same = [((found == c) & (truth == c)).sum() / ((found == c) | (truth == c)).sum() for c in range(CLASSES)]
    return 1 - sieve.summary().keep if use_sieve else train_data.history[-1].saved_so_far, torch.stack(same).nanmean()


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", help="a folder with images/NAME.* and masks/NAME.png: class numbers from 0, 255: ignored")
parser.add_argument("--samples", type=int, default=1000, help="images that are made without --data (default 1000)")
parser.add_argument("--epochs", type=int, default=16, help="epochs of each run, 8 or more (default 16)")
parser.add_argument("--sieve", action="store_true", help="a third run, in which a sieve chooses inside each batch")
options = parser.parse_args()
images, labels = read(options.data) if options.data else make(options.samples)
TEST, TRAIN = slice(len(images) // 5), slice(len(images) // 5, None)
CLASSES = int(labels[labels != IGNORED].max()) + 1
runs = {"full data": (infobatch.methods.full(), False), "InfoBatch": (infobatch.methods.infobatch(), False)}
for name, run in (runs | ({"sieve": (infobatch.methods.full(), True)} if options.sieve else {})).items():
    print("{:9}  {:5.1%} of the samples saved, mean IoU {:.3f}".format(name, *train_once(*run)))
