"""Masked images: a small ViT-MAE of transformers. Scores are averaged, as one score depends mostly on its mask."""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from transformers import ViTMAEConfig, ViTMAEForPreTraining

import infobatch
from infobatch.adapters import masked_image_loss

BATCH, PATCHES = 32, 16


def read(folder):
    """Return all images of a folder, and of the folders in it, as RGB."""
    paths = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    pixels = [np.array(Image.open(path).convert("RGB").resize((32, 32))) for path in paths]
    return torch.tensor(np.stack(pixels)).movedim(3, 1) / 255


def make_model():
    channels, size = images.shape[1:3]
    config = {"image_size": size, "patch_size": size // 4, "num_channels": channels, "mask_ratio": 0.5}
    config |= {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 96}
    config |= {"decoder_hidden_size": 32, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 4}
    model = ViTMAEForPreTraining(ViTMAEConfig(**config, decoder_intermediate_size=64))
    for name, parameter in model.named_parameters():
        if "pos" in name:  # transformers 5.23 leaves the positions of a new model at 0
            torch.nn.init.normal_(parameter.requires_grad_(), std=0.5)
        elif parameter.ndim > 1:
            torch.nn.init.xavier_uniform_(parameter.flatten(1))  # as in the paper of MAE
    return model


def train_once(method):
    """Return the share of the samples saved, and the error of the masked patches of held-out images."""
    torch.manual_seed(0)
    model = make_model()
    train_data = infobatch.Pruned(torch.utils.data.TensorDataset(images[TRAIN]), method, options.epochs)
    steps = infobatch.full_steps(train_data, BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.05)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.epochs * steps)
    scheduler = infobatch.pace(cosine, train_data, steps)
    for _ in range(options.epochs):
        for (x,) in infobatch.DataLoader(train_data, batch_size=BATCH):
            out = model(x)
            loss, score = masked_image_loss(out.logits, out.mask, x, norm_pix_loss=model.config.norm_pix_loss)
            optimizer.zero_grad()
            train_data.update(loss, score=score).backward()  # with nothing pruned this is out.loss
            optimizer.step()
            scheduler.step()
    with torch.no_grad():
        masks = torch.rand(len(images[TEST]), PATCHES, generator=torch.Generator().manual_seed(0))
        return train_data.history[-1].saved_so_far, model.eval()(images[TEST], noise=masks).loss.item()


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", help="a folder of images; without it the images are scikit-learn's digits")
parser.add_argument("--epochs", type=int, default=20, help="epochs of each run, 8 or more (default 20)")
options = parser.parse_args()
images = read(options.data) if options.data else torch.tensor(load_digits().images).float()[:, None] / 16
TEST, TRAIN = slice(len(images) // 5), slice(len(images) // 5, None)
images = (images - images[TRAIN].mean()) / images[TRAIN].std()
averaged = infobatch.variations.averaged(infobatch.methods.infobatch())
print(f"mean image                               error {(images[TEST] - images[TRAIN].mean(0)).square().mean():.3f}")
for name, method in {"full data": infobatch.methods.full(), "InfoBatch": averaged}.items():
    print("{:9}  {:5.1%} of the samples saved, error {:.3f}".format(name, *train_once(method)))
