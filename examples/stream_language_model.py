"""Train a language model on a stream, each row once: on all rows, with a sieve, and in a shorter run."""

import argparse
import random
from itertools import islice
from pathlib import Path

import torch
from torch.utils.data import DataLoader, IterableDataset
from transformers import LlamaConfig, LlamaForCausalLM

import infobatch
from infobatch.adapters import language_loss

BATCH, LENGTH = 32, 48


class Stream(IterableDataset):
    """The bytes of a text from first to last, in rows of one length, so that all rows cost the same."""

    def __init__(self, text):
        self.text = text

    def __iter__(self):
        for start in range(0, len(self.text) - LENGTH + 1, LENGTH):
            yield torch.tensor([*self.text[start : start + LENGTH]])


def make(rows):  # sums; in three rows of four, all numbers have a single digit: these are soon learned
    draw, text = random.Random(0), ""
    for row in range(rows):
        below = draw.choice((10, 10, 10, 100))
        while len(text) < (row + 1) * LENGTH:
            a, b = draw.randrange(below), draw.randrange(below)
            text += f"{a}+{b}={a + b}\n"
    return text.encode()


def make_model(width, layers):
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": layers}
    config = LlamaConfig(vocab_size=256, num_attention_heads=width // 16, use_cache=False, **sizes)
    return LlamaForCausalLM(config)


def losses_of(net, ids):
    return language_loss(net(ids).logits, ids, shift=True).loss


def train_once(num_steps, use_sieve=False):
    """Train for a number of steps; return the held-out loss and the FLOPs, looking included."""
    torch.manual_seed(0)
    model, small = make_model(64, layers=2), make_model(16, layers=1)
    flops = infobatch.sieve.count_flops(model, next(iter(DataLoader(test, BATCH))))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    sieve = infobatch.Sieve(infobatch.sieve.Proxy(small, losses=losses_of), num_steps=num_steps)
    for ids in islice(DataLoader(train, BATCH), num_steps):
        ids, _ = sieve(ids) if use_sieve else (ids, None)  # the rows that are worth a step
        losses = losses_of(model.train(), ids)
        optimizer.zero_grad()
        (sieve.reduce(losses) if use_sieve else losses.mean()).backward()
        optimizer.step()
        scheduler.step()
    with torch.no_grad():
        loss = torch.cat([losses_of(model.eval(), ids) for ids in DataLoader(test, BATCH)]).mean()
    return loss, 3 * flops * num_steps * BATCH * (sieve.summary(flops).compute if use_sieve else 1)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, help="a text file, read once; its last tenth is held out")
parser.add_argument("--steps", type=int, default=800, help="batches of the text made without --data (default 800)")
options = parser.parse_args()
text = options.data.read_bytes() if options.data else make(BATCH * options.steps * 10 // 9)
steps = len(text) * 9 // 10 // (LENGTH * BATCH)
train, test = Stream(text[: steps * LENGTH * BATCH]), Stream(text[steps * LENGTH * BATCH :])
full, sieved = train_once(steps), train_once(steps, use_sieve=True)
shorter = train_once(round(steps * sieved[1] / full[1]))
for name, (loss, flops) in {"full data": full, "sieve": sieved, "shorter run": shorter}.items():
    print(f"{name:11}  {flops:.3e} FLOPs, {flops / full[1]:6.1%} of full data; held-out loss {loss:.4f}")
