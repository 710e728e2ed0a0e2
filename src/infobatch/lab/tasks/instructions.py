"""Instruction tuning: a causal language model learns answers to prompts; prompts are not predicted.

Without a model of the user's, tokens are bytes and the net is a small transformer. With a folder ``model`` beside the
data, as ``save_pretrained`` of transformers writes it, its tokenizer and weights are used.

Inputs are padded to the longest sample of their set; the nets cut what is padding in the whole batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...adapters.language import IGNORED, language_loss
from ...adapters.per_sample import PerSample
from ...errors import InputError, message
from ...sieve.undisturbed import kept_random_state
from ..metrics.metric import Named
from ..metrics.perplexity import Perplexity
from .nested import mapped, take
from .readers.common import Samples, fingerprint, package_missing
from .readers.pairs import TEST, TRAIN, Pair, find_file, read_pairs
from .task import Arrays, Task

LENGTH = 512
"""Longer samples are cut, as in Alpaca's training."""
HELD_OUT = 0.1
"""The share of the pairs that is held out if there is no test file."""
MARGIN = 0.05
"""How much the perplexity may rise without harm."""
TEST_BATCH = 32
MODEL = "model"
"""The folder of the user's model, beside the data."""
BYTES = 256

DEFAULTS: dict[str, Any] = {
    "epochs": 8, "batch_size": 32, "optimizer": "adamw", "lr": 3e-3, "weight_decay": 0.0, "schedule": "cosine",
    "graph": False,
}  # fmt: skip
"""Without a CUDA graph, in which every batch would be as long as the longest sample of the set."""
PRETRAINED: dict[str, Any] = {"epochs": 3, "lr": 2e-5}
"""What changes with a pretrained model: Alpaca's epochs and learning rate."""

Inputs = dict[str, Tensor]
Encode = Callable[[Sequence[Pair]], list[tuple[list[int], list[int]]]]


@dataclass(frozen=True, eq=False)
class Texts(Samples):
    """What ``read`` returns: samples with the net and the texts that belong to them."""

    make_model: Callable[[], nn.Module] = nn.Identity
    pairs: tuple[Pair, ...] = ()
    """Those of the training samples."""
    is_pretrained: bool = False


# ---- reading ---------------------------------------------------------------------------------------------


def read(folder: Path) -> Texts:
    """Read the samples of a folder, and its model if it has one.

    Raises:
        InputError: If a file is damaged or missing, or no sample has a token to predict.
    """
    train_file, test_file, model = find_file(folder, TRAIN), find_file(folder, TEST), folder / MODEL
    assert train_file is not None
    pairs = read_pairs(train_file)
    files = [train_file, *([] if test_file is None else [test_file])]
    source = fingerprint(files)
    if test_file is None:
        pairs, held_out = _split(pairs, train_file)
        source += f", of which {HELD_OUT:.0%} held out"
    else:
        held_out = read_pairs(test_file)
    is_pretrained = model.is_dir()
    if is_pretrained:
        encode, limit = _load_tokenizer(model)
        make_model: Callable[[], nn.Module] = partial(Pretrained, str(model))
        source += f", {MODEL}: {fingerprint(sorted(path for path in model.iterdir() if path.is_file()))}"
    else:
        encode, limit = encode_bytes, LENGTH
        make_model = partial(SmallTransformer, BYTES + 1, LENGTH)
    train, test = _Encoded(encode(pairs), limit), _Encoded(encode(held_out), limit)
    for part, file in ((train, train_file), (test, test_file or train_file)):
        if not part.kept:
            remedy = "Shorten the prompts."
            raise InputError(message(f"prompts of fewer than {limit} tokens in {file}", "none", remedy))
    _warn_of_cut(train, test, limit)
    return Texts(
        train=train.arrays(),
        test=test.arrays(),
        source=source,
        make_model=make_model,
        pairs=tuple(pairs[index] for index in train.kept),
        is_pretrained=is_pretrained,
    )


def _split(pairs: list[Pair], file: Path) -> tuple[list[Pair], list[Pair]]:
    """Hold out the same samples in every run, whatever its seed: methods and seeds must share the data."""
    count = max(1, round(HELD_OUT * len(pairs)))
    if count == len(pairs):
        remedy = f"Add {TEST[0]} beside it, or more pairs."
        raise InputError(message(f"at least 2 pairs in {file}, of which some are held out", "1", remedy))
    warnings.warn(
        f"There is no {' or '.join(TEST)} beside {file.name}: {count:,} of its {len(pairs):,} pairs are held out, the "
        "same in every run.",
        stacklevel=2,
    )
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0)).tolist()
    is_held_out = set(order[:count])
    train = [pair for index, pair in enumerate(pairs) if index not in is_held_out]
    return train, [pairs[index] for index in sorted(is_held_out)]


def _warn_of_cut(train: _Encoded, test: _Encoded, limit: int) -> None:
    cut, left_out = train.cut + test.cut, train.left_out + test.left_out
    if cut:
        lost = f" {left_out:,} of them are left out: their prompt alone is as long." if left_out else ""
        warnings.warn(f"{cut:,} samples are longer than {limit} tokens and are cut.{lost}", stacklevel=2)


class _Encoded:
    """The tokens of one set, cut to ``limit``; samples whose answer is cut off altogether are left out."""

    def __init__(self, tokens: Sequence[tuple[list[int], list[int]]], limit: int) -> None:
        self.kept = [index for index, (prompt, _) in enumerate(tokens) if len(prompt) < limit]
        self.left_out = len(tokens) - len(self.kept)
        self.cut = sum(len(prompt) + len(answer) > limit for prompt, answer in tokens)
        chosen = (tokens[index] for index in self.kept)
        self.rows = [(len(prompt), [*prompt, *answer][:limit]) for prompt, answer in chosen]

    def arrays(self) -> Arrays:
        """Return the tokens, padded to the longest sample, and as labels those of the answers."""
        longest = max(len(tokens) for _, tokens in self.rows)
        ids = torch.zeros(len(self.rows), longest, dtype=torch.int32)
        labels = torch.full_like(ids, IGNORED)
        for index, (first, tokens) in enumerate(self.rows):
            ids[index, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
            labels[index, first : len(tokens)] = ids[index, first : len(tokens)]
        lengths = torch.tensor([len(tokens) for _, tokens in self.rows])
        return Arrays({"input_ids": ids, "length": lengths}, labels)


def encode_bytes(pairs: Sequence[Pair]) -> list[tuple[list[int], list[int]]]:
    """Return the bytes of prompts and answers; 256 ends an answer.

    >>> encode_bytes([Pair("a", "b")])
    [([97], [98, 256])]
    """
    return [(list(pair.prompt.encode()), [*pair.answer.encode(), BYTES]) for pair in pairs]


# ---- nets ------------------------------------------------------------------------------------------------


def cut_padding(inputs: Inputs) -> Tensor:
    """Return the tokens of a batch up to the end of its longest sample.

    For that a number is read from the device; not while a step is captured as a CUDA graph, whose shapes never change.
    """
    ids = inputs["input_ids"].long()
    if ids.is_cuda and torch.cuda.is_current_stream_capturing():
        return ids
    return ids[:, : int(inputs["length"].max())]


class SmallTransformer(nn.Module):
    """A causal transformer. No token attends to the padding behind it, so it needs no mask of the padding.

    Args:
        vocabulary: The number of tokens.
        limit: The length of the longest sample.
        width: The size of its hidden states.
        depth: The number of blocks.
        heads: The number of attention heads.
    """

    def __init__(self, vocabulary: int, limit: int, width: int = 64, depth: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(limit, width)
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.1)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def hidden(self, inputs: Inputs) -> Tensor:
        """Return the last hidden states, [batch, length, width]."""
        ids = cut_padding(inputs)
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        states: Tensor = self.norm(x)
        return states

    def forward(self, inputs: Inputs) -> Tensor:
        logits: Tensor = self.head(self.hidden(inputs))
        return logits


class Block(nn.Module):
    """Causal attention and a layer of its own for each token, both added to what comes in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layer = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        added: Tensor = x + self.layer(x)
        return added


class Pretrained(nn.Module):
    """A causal language model of transformers from a local folder, in float32.

    Raises:
        InputError: If transformers is missing, or the folder holds no such model.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.model = _loaded("AutoModelForCausalLM", folder).float()

    def hidden(self, inputs: Inputs) -> Tensor:
        """Return the last hidden states, [batch, length, width]."""
        found = self.model(input_ids=cut_padding(inputs), use_cache=False, output_hidden_states=True)
        states: Tensor = found.hidden_states[-1]
        return states

    def forward(self, inputs: Inputs) -> Tensor:
        logits: Tensor = self.model(input_ids=cut_padding(inputs), use_cache=False).logits
        return logits


def _loaded(kind: str, folder: str) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise package_missing("transformers", "transformers") from error
    try:
        return getattr(transformers, kind).from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever the many parts of transformers raise
        remedy = "Write both with save_pretrained(folder) of the model and of its tokenizer."
        expected = f"a causal language model of transformers and its tokenizer in {folder}"
        raise InputError(message(expected, f"{type(error).__name__}: {error}"[:300], remedy)) from error


def _load_tokenizer(folder: Path) -> tuple[Encode, int]:
    """Return a function that encodes pairs, and the length of the longest sample that the model takes."""
    tokenizer, config = _loaded("AutoTokenizer", str(folder)), _loaded("AutoConfig", str(folder))
    if tokenizer.eos_token_id is None:
        remedy = "Set tokenizer.eos_token, and save it again."
        raise InputError(message(f"a tokenizer with a token that ends an answer in {folder}", "none", remedy))

    def encode(pairs: Sequence[Pair]) -> list[tuple[list[int], list[int]]]:
        prompts = tokenizer([pair.preamble + pair.prompt for pair in pairs]).input_ids
        answers = tokenizer([pair.answer for pair in pairs], add_special_tokens=False).input_ids
        return [(prompt, [*answer, tokenizer.eos_token_id]) for prompt, answer in zip(prompts, answers, strict=True)]

    return encode, min(LENGTH, getattr(config, "max_position_embeddings", None) or LENGTH)


# ---- the task --------------------------------------------------------------------------------------------


def answer_loss(outputs: Tensor, labels: Tensor, label_smoothing: float) -> PerSample:
    """Return loss and score of each answer; the mean of the losses is that over the tokens of the batch.

    So is the loss of Alpaca's script, which trains with the Trainer of transformers.

    Raises:
        InputError: If labels are to be smoothed.
    """
    if label_smoothing:
        remedy = "Leave it out: the losses of tokens are not smoothed."
        raise InputError(message("label_smoothing 0 for instructions", f"{label_smoothing:g}", remedy))
    return language_loss(outputs, labels[:, : outputs.shape[1]], shift=True, average="batch")


def answer_confidence(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the probability of each answer's tokens, as their geometric mean."""
    return answer_loss(outputs, labels, 0.0).score.neg().exp()


def _prepare(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return outputs, labels[:, : outputs.shape[1]]


def make(name: str, samples: Samples, defaults: dict[str, Any]) -> Task:
    """Return the task of what ``read`` returned; a pretrained model has other defaults."""
    assert isinstance(samples, Texts)
    pairs, metric = samples.pairs, Perplexity(MARGIN, IGNORED, shift=True)
    return Task(
        name,
        samples.train,
        samples.test,
        classes=(),
        defaults=defaults | (PRETRAINED if samples.is_pretrained else {}),
        loss=answer_loss,
        metric=Named(metric, "perplexity of answers", margin=MARGIN, prepare=_prepare),
        texts=lambda index: pairs[index].prompt + pairs[index].answer,
        make_model=samples.make_model,
        source=samples.source,
        confidence=answer_confidence,
        features=partial(features, samples),
        test_batch=TEST_BATCH,
    )


def features(samples: Texts, seed: int, device: torch.device) -> Tensor:
    """Return the mean last hidden state of each training sample, at length 1.

    They are those of the pretrained model or, without one, of the small transformer after an epoch.
    """
    train = samples.train
    assert isinstance(train, Arrays)
    with kept_random_state(device):
        torch.manual_seed(seed)
        net: Any = samples.make_model().to(device)
        if not samples.is_pretrained:
            _train_epoch(net, train, device)
    found = []
    net.eval()
    with torch.no_grad():
        for at in range(0, len(train), TEST_BATCH):
            inputs = _move(take(train.inputs, slice(at, at + TEST_BATCH)), device)
            states = net.hidden(inputs).float()
            is_token = torch.arange(states.shape[1], device=device) < inputs["length"][:, None]
            found.append((states * is_token[:, :, None]).sum(1))  # its direction is that of the mean
    return F.normalize(torch.cat(found))


def _train_epoch(net: nn.Module, train: Arrays, device: torch.device) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), lr=DEFAULTS["lr"], weight_decay=0.0)
    order, size = torch.randperm(len(train)), DEFAULTS["batch_size"]
    net.train()
    for at in range(0, len(train), size):
        rows = order[at : at + size]
        inputs, labels = _move(take(train.inputs, rows), device), _move(take(train.labels, rows), device)
        optimizer.zero_grad()
        answer_loss(net(inputs), labels, 0.0).loss.mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _move(value: Any, device: torch.device) -> Any:
    return mapped(lambda tensor: tensor.to(device), value)
