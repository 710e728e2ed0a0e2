"""Train a small causal language model on answers alone: prompts are not predicted, batches are padded or packed."""

import argparse
import json
import random
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM

import infobatch
from infobatch.adapters import language_loss

BATCH, IGNORED, LENGTH = 32, -100, 512
RANDOM = ["embed_tokens", "lm_head"]  # trained as a whole beside low-rank adapters; leave them out if pretrained


def make(count):  # sums, two thirds of them of numbers with a single digit: most are soon learned, some take longer
    draw = random.Random(0).randrange
    pairs = ([draw(10 if n % 3 else 100), draw(10 if n % 3 else 100)] for n in range(count))
    return [(f"{a}+{b}=", str(a + b)) for a, b in pairs]


def encode(pair):
    question, answer = pair[0].encode(), f"{pair[1]}\n".encode()
    return torch.tensor([*question, *answer])[:LENGTH], torch.tensor([IGNORED] * len(question) + [*answer])[:LENGTH]


def collate(pairs):
    ids, labels = zip(*map(encode, pairs), strict=True)
    if options.packed:  # one row without padding; where positions begin anew, so does a sequence
        positions = torch.cat([torch.arange(len(one)) for one in ids])[None]
        x = {"input_ids": torch.cat(ids)[None], "position_ids": positions}
        return x, torch.cat(labels)[None], {"position_ids": positions, "count": len(ids)}
    labels = pad_sequence(labels, batch_first=True, padding_value=IGNORED)
    return {"input_ids": pad_sequence(ids, batch_first=True)}, labels, {}  # no token attends to the padding behind it


def train_once(method):
    torch.manual_seed(0)
    sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, use_cache=False))
    if options.lora:
        import peft

        model = peft.get_peft_model(model, peft.LoraConfig(target_modules="all-linear", modules_to_save=RANDOM))
    train_data = infobatch.Pruned(train, method, options.epochs)
    steps, optimizer = infobatch.full_steps(train_data, BATCH), torch.optim.AdamW(model.parameters(), lr=3e-3)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.epochs * steps)
    scheduler = infobatch.pace(cosine, train_data, steps)
    for _ in range(options.epochs):
        for x, labels, sequences in infobatch.DataLoader(train_data, batch_size=BATCH, collate_fn=collate):
            loss, score = language_loss(model.train()(**x).logits, labels, shift=True, **sequences)
            optimizer.zero_grad()
            train_data.update(loss, score=score).backward()
            optimizer.step()
            scheduler.step()
    found, right = [], 0
    for ids, labels in map(encode, test):
        with torch.no_grad():
            logits, answer = model.eval()(ids[None]).logits[0, :-1][labels[1:] != IGNORED], labels[labels != IGNORED]
        found.append(torch.nn.functional.cross_entropy(logits, answer, reduction="none"))
        right += bool((logits.argmax(1) == answer).all())  # then the model would write it without an error
    return train_data.history[-1].saved_so_far, torch.cat(found).mean(), right / len(test)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, help='a file of lines {"question": ..., "answer": ...}: a fifth is held out')
parser.add_argument("--samples", type=int, default=3000, help="sums that are made without --data (default 3000)")
parser.add_argument("--epochs", type=int, default=16, help="epochs of each run, 8 or more (default 16)")
parser.add_argument("--packed", action="store_true", help="one row per batch, without padding")
parser.add_argument("--lora", action="store_true", help="train low-rank adapters of the linear layers; needs peft")
options = parser.parse_args()
lines = map(json.loads, options.data.read_text().splitlines()) if options.data else []
pairs = [(line["question"], line["answer"]) for line in lines] or make(options.samples)
train, test = pairs[len(pairs) // 5 :], pairs[: len(pairs) // 5]
for name, method in {"full data": infobatch.methods.full(), "InfoBatch": infobatch.methods.infobatch()}.items():
    saved, loss, right = train_once(method)
    print(f"{name:9}  {saved:5.1%} of the samples saved, held-out loss {loss:.3f}, {right:.1%} of the answers right")
