"""Diffusion with a small UNet of diffusers, on pixels or latents: scores that do not depend on the timestep."""

import argparse

import torch
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DModel
from sklearn.datasets import load_digits
from torch.nn import functional as F

import infobatch
from infobatch.adapters import TimestepNormalizer, diffusion_loss
from infobatch.sieve import Proxy, lot

BATCH = 64


def encode(images, epochs=8):
    """Train an autoencoder, and return the latents of all images: 2 x 4 x 4 numbers for 8 x 8 pixels."""
    torch.manual_seed(0)
    blocks = {"down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2}
    sizes = {"block_out_channels": [8, 16], "norm_num_groups": 4, "latent_channels": 2}
    autoencoder = AutoencoderKL(in_channels=1, out_channels=1, **blocks, **sizes)
    optimizer = torch.optim.AdamW(autoencoder.parameters(), lr=5e-3)
    for x in images.repeat(epochs, 1, 1, 1).split(BATCH):
        optimizer.zero_grad()
        F.mse_loss(autoencoder(x).sample, x).backward()
        optimizer.step()
    with torch.no_grad():
        latents = autoencoder.encode(images).latent_dist.mean
    return (latents - latents.mean()) / latents.std()


def make_unet(width):
    blocks = {"down_block_types": ["DownBlock2D"] * 2, "up_block_types": ["UpBlock2D"] * 2, "layers_per_block": 1}
    sizes = {"block_out_channels": [width, 2 * width], "norm_num_groups": 4, "sample_size": images.shape[3]}
    return UNet2DModel(in_channels=images.shape[1], out_channels=images.shape[1], **blocks, **sizes)


def train_once(method, use_sieve):
    """Return the share of samples saved, and the error of the noise in held-out images; predicting none has 1."""
    torch.manual_seed(0)
    model, ddpm = make_unet(16), DDPMScheduler(num_train_timesteps=1000)
    proxy = Proxy(make_unet(4), losses=lambda net, b: diffusion_loss(net(b[0], b[2])[0], *b[1:], None).loss)
    sieve = infobatch.Sieve(proxy, lot(keep=0.7))  # it draws by the loss, with weights 1 / chance
    normalizer = TimestepNormalizer(0, 1000)  # one for the whole run; save its state beside that of train_data
    train_data = infobatch.Pruned(torch.utils.data.TensorDataset(images[TRAIN]), method, options.epochs)
    steps = infobatch.full_steps(train_data, BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.epochs * steps)
    scheduler = infobatch.pace(cosine, train_data, steps)
    for _ in range(options.epochs):
        for (x,) in infobatch.DataLoader(train_data, batch_size=BATCH):
            noise, t = torch.randn_like(x), torch.randint(1000, (len(x),))
            noisy = ddpm.add_noise(x, noise, t)
            noisy, noise, t, _ = sieve(noisy, noise, t) if use_sieve else (noisy, noise, t, None)
            loss, score = diffusion_loss(model(noisy, t).sample, noise, t, normalizer)
            loss, score = sieve.expand(loss) if use_sieve else (loss, score)
            optimizer.zero_grad()
            train_data.update(loss, score=score).backward()
            optimizer.step()
            scheduler.step()
    noise = torch.randn(images[TEST].shape, generator=torch.Generator().manual_seed(0))
    t = torch.arange(len(noise)) * 1000 // len(noise)
    with torch.no_grad():
        error = F.mse_loss(model(ddpm.add_noise(images[TEST], noise, t), t).sample, noise).item()
    return 1 - sieve.summary().keep if use_sieve else train_data.history[-1].saved_so_far, error


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--latent", action="store_true", help="first train an autoencoder, then diffuse its latents")
parser.add_argument("--epochs", type=int, default=16, help="epochs of each run, 8 or more (default 16)")
parser.add_argument("--sieve", action="store_true", help="a third run, in which a sieve chooses inside each batch")
options = parser.parse_args()
digits = torch.tensor(load_digits().images).float()[:, None] / 8 - 1
images = encode(digits) if options.latent else digits
TEST, TRAIN = slice(len(images) // 5), slice(len(images) // 5, None)
averaged = infobatch.variations.averaged(infobatch.methods.infobatch())
runs = {"full data": (infobatch.methods.full(), False), "InfoBatch": (averaged, False)}
for name, run in (runs | ({"sieve": (infobatch.methods.full(), True)} if options.sieve else {})).items():
    print("{:9}  {:5.1%} of the samples saved, error {:.3f}".format(name, *train_once(*run)))
