"""A variational autoencoder whose script sums its loss over pixels, latents and the batch: the sum stays the same."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn

import infobatch

BATCH, LATENT = 64, 8


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2 * LATENT))
        self.decoder = nn.Sequential(nn.Linear(LATENT, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, x):
        """Return the losses of the pixels and, as further columns, of the latents: [batch, 64 + LATENT]."""
        mean, log_var = self.encoder(x).chunk(2, dim=1)
        logits = self.decoder(mean + torch.randn_like(mean) * (log_var / 2).exp())
        pixels = nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="none")
        return torch.cat([pixels, (mean.square() + log_var.exp() - 1 - log_var) / 2], dim=1)


def train_once(method):
    """Return the share of the samples saved, and the negative ELBO of the held-out images, in nats per image."""
    torch.manual_seed(0)
    model = VAE()
    train_data = infobatch.Pruned(torch.utils.data.TensorDataset(images[TRAIN]), method, options.epochs)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(options.epochs):
        for (x,) in infobatch.DataLoader(train_data, batch_size=BATCH):
            loss, score = infobatch.per_sample(model(x), average="sum")  # was: model(x).sum()
            optimizer.zero_grad()
            train_data.update(loss, score=score).backward()
            optimizer.step()
    with torch.no_grad():
        return train_data.history[-1].saved_so_far, model(images[TEST]).sum(1).mean().item()


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=40, help="epochs of each run, 8 or more (default 40)")
options = parser.parse_args()
images = torch.tensor(load_digits().images).float().flatten(1) / 16
TEST, TRAIN = slice(len(images) // 5), slice(len(images) // 5, None)
mean = images[TRAIN].mean(0).clamp(1e-3, 1 - 1e-3).expand_as(images[TEST])
nats = nn.functional.binary_cross_entropy(mean, images[TEST], reduction="sum") / len(mean)
print(f"mean image                               {nats:.2f} nats per image")
for name, method in {"full data": infobatch.methods.full(), "InfoBatch": infobatch.methods.infobatch()}.items():
    print("{:9}  {:5.1%} of the samples saved, {:.2f} nats per image".format(name, *train_once(method)))
