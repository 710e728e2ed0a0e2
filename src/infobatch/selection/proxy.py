"""The proxy: a model trained once and watched, so that scoring never mixes with training.

Nothing of it goes into the training that follows; what it leaves is the evidence.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.utils.data import DataLoader, Sampler, TensorDataset

from ..checks import check_count, check_dataset, is_number
from ..errors import InputError, message
from ..plan import generator_for, shuffled
from .evidence import Evidence

CPU = torch.device("cpu")
GRADIENTS = 1 << 26
"""Numbers of per-sample gradients held at once: 256 MiB."""
RISE = 0.3
"""The share of the steps in which the learning rate rises; in the rest it falls."""

Batch = tuple[Tensor, Tensor, Tensor]
"""Positions in the data set, inputs, labels."""


@dataclass(frozen=True)
class Progress:
    """Told after every epoch: ``done`` of ``total`` epochs over all runs, and the mean loss of this one."""

    run: int
    epoch: int
    done: int
    total: int
    loss: float


def gather(
    model: nn.Module | Callable[[], nn.Module],
    dataset: Any,
    *,
    epochs: int = 20,
    runs: int = 1,
    early: int | None = None,
    batch_size: int = 128,
    lr: float = 0.1,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    seed: int = 0,
    device: torch.device | str | None = None,
    layer: str = "",
    exact: bool = False,
    validation: Any = None,
    workers: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> Evidence:
    """Train a copy of ``model`` on ``dataset`` and note of each sample what the selectors ask for.

    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> data = TensorDataset(torch.randn(20, 4), torch.arange(20) % 2)
    >>> gather(torch.nn.Linear(4, 2), data, epochs=2)
    Evidence(20 samples: labels, features, logits, head, correct, aum, error_norms, grad_norms)

    ``dataset`` has items (x, label), best without augmentation. ``model`` returns logits [batch, K] from a linear
    last layer, which is found, or named by ``layer``; in place of a model, a function that makes one. It is trained
    by SGD on the cross entropy, with a learning rate that rises to ``lr`` and falls to 0.

    - Run 0 trains all ``epochs``. At each visit of a sample, before the step: ``correct`` and ``aum``. After the
      last epoch, in evaluation mode: ``features``, ``logits``, ``head``, and the same of the ``validation`` data.
    - Each of ``runs`` is looked at after ``early`` epochs (half of all, if not said) for ``error_norms`` and
      ``grad_norms``; those after the first end there. More than one wants different beginnings, so a function.
    - ``grad_norms`` are of the last layer alone, |p - y| |f|; with ``exact=True`` of the whole network, sample by
      sample, which is for small nets.
    - ``epochs=0`` trains nothing and looks at the model as it is.

    A function of its arguments: on the CPU bit for bit, on a GPU as far as its kernels are. No global random state
    is left changed. The evidence lies on ``device``, the model's own if not said.
    """
    _check_counts(epochs=epochs, runs=runs, batch_size=batch_size, workers=workers)
    seed = check_count("seed", seed, 0, "Leave it out for the default.")
    early = epochs // 2 if early is None else early
    _check_counts(early=early)
    _check_rates(lr=lr, momentum=momentum, weight_decay=weight_decay)
    _check_source(model, runs, early, epochs)
    place = _find_device(model, device)
    feed = _SampleReader(dataset, batch_size, workers, place, seed)
    held_out = None if validation is None else _SampleReader(validation, batch_size, workers, place, seed)
    recipe = _Recipe(epochs, lr, momentum, weight_decay)
    history = _VisitHistory(feed.size, epochs, place)
    norms: list[tuple[Tensor, Tensor]] = []
    facts: dict[str, Any] = {}

    with _restored_randomness(place):
        for run in range(runs):
            generator = generator_for(seed, run, CPU)
            _reseed(generator.initial_seed(), place)
            net = copy.deepcopy(model if isinstance(model, nn.Module) else _make_model(model)).to(place)
            head = _last_layer(net, layer, feed.first())
            tell = _ProgressReporter(progress, run, early, epochs, runs)
            trainer = _Trainer(
                net, head.out_features, feed, recipe, generator, history.note if run == 0 else None, tell
            )
            trainer.train(0, early)
            norms.append(_collect_norms(net, head, feed, exact))
            if run == 0:
                trainer.train(early, epochs)
                facts = _collect_outputs(net, head, feed)
                if held_out is not None:
                    facts["validation"] = Evidence(held_out.size, **_collect_outputs(net, head, held_out))
    errors, gradients = (torch.stack(table) for table in zip(*norms, strict=True))
    return Evidence(feed.size, error_norms=errors, grad_norms=gradients, **facts, **history.facts())


@dataclass(frozen=True)
class _Recipe:
    epochs: int
    lr: float
    momentum: float
    weight_decay: float

    def rate(self, past: float) -> float:
        """The learning rate when this share of the run is past."""
        return self.lr * min(past / RISE, (1 - past) / (1 - RISE))


@dataclass(frozen=True)
class _ProgressReporter:
    """Counts the epochs of all runs for whoever listens."""

    listener: Callable[[Progress], None] | None
    run: int
    early: int
    epochs: int
    runs: int

    def __call__(self, epoch: int, loss: float) -> None:
        if self.listener is not None:
            before = 0 if self.run == 0 else self.epochs + (self.run - 1) * self.early
            total = self.epochs + (self.runs - 1) * self.early
            self.listener(Progress(self.run, epoch, before + epoch + 1, total, loss))


class _Order(Sampler[list[int]]):
    """The batches of the coming pass, as positions."""

    def __init__(self) -> None:
        self.batches: tuple[Tensor, ...] = ()

    def __iter__(self) -> Iterator[list[int]]:
        return (batch.tolist() for batch in self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _SampleReader:
    """The data set in any order, each batch with its positions. Tensors in memory are cut without a loader."""

    def __init__(self, dataset: Any, batch_size: int, workers: int, device: torch.device, seed: int) -> None:
        check_dataset(dataset)
        self.size, self.batch_size, self.device = len(dataset), batch_size, device
        self.dataset: Any = dataset
        self.read = False
        self.order = _Order()
        self.loader: DataLoader[Any] = DataLoader(
            self.dataset,
            batch_sampler=self.order,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=device.type == "cuda",
            generator=generator_for(seed, -1, CPU),
        )

    def batches(self, order: Tensor, classes: int) -> Iterator[Batch]:
        """All samples in this order. No batch is of one sample alone, which batch norm could not train on."""
        cuts = list(torch.split(order, self.batch_size))
        if len(cuts) > 1 and len(cuts[-1]) == 1:
            cuts[-2:] = [torch.cat(cuts[-2:])]
        for indices, batch in zip(cuts, self._cut(cuts), strict=True):
            x, y = _split_pair(batch)
            if not self.read:  # once: on a device each look would wait for it
                _check_labels(y, len(indices), classes)
            yield indices.to(self.device), x.to(self.device), y.to(self.device, torch.int64)
        self.read = True

    def first(self) -> Tensor:
        """The inputs of the first two samples."""
        cuts = [torch.arange(min(2, self.size), device=CPU)]
        return _split_pair(next(iter(self._cut(cuts))))[0].to(self.device)

    def _cut(self, cuts: list[Tensor]) -> Iterator[Any]:
        if type(self.dataset) is TensorDataset:
            lies = self.dataset.tensors[0].device
            return (self.dataset[indices.to(lies)] for indices in cuts)
        self.order.batches = tuple(cuts)
        return iter(self.loader)


class _VisitHistory:
    """What run 0 shows at each visit of a sample."""

    def __init__(self, size: int, epochs: int, device: torch.device) -> None:
        self.correct = torch.zeros(epochs, size, dtype=torch.bool, device=device)
        self.margins = torch.zeros(size, dtype=torch.float32, device=device)

    def note(self, epoch: int, indices: Tensor, logits: Tensor, labels: Tensor) -> None:
        own = logits.gather(1, labels[:, None])
        others = logits.scatter(1, labels[:, None], float("-inf")).amax(1) if logits.shape[1] > 1 else own[:, 0]
        self.correct[epoch, indices] = logits.argmax(1) == labels
        self.margins[indices] += own[:, 0] - others

    def facts(self) -> dict[str, Any]:
        epochs = len(self.correct)
        return {"correct": self.correct, "aum": self.margins / epochs} if epochs else {}


class _Trainer:
    """SGD over shuffled batches, epoch by epoch."""

    def __init__(
        self,
        net: nn.Module,
        classes: int,
        feed: _SampleReader,
        recipe: _Recipe,
        generator: torch.Generator,
        note: Callable[[int, Tensor, Tensor, Tensor], None] | None,
        tell: Callable[[int, float], None],
    ) -> None:
        self.net, self.classes, self.feed, self.recipe, self.generator = net, classes, feed, recipe, generator
        self.note, self.tell = note, tell
        self.weights = [weight for weight in net.parameters() if weight.requires_grad]
        if recipe.epochs:
            if not self.weights:
                raise InputError(message("a model with weights to train", "none", "Pass epochs=0 to train nothing."))
            self.sgd = torch.optim.SGD(
                self.weights, recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay
            )

    def train(self, start: int, stop: int) -> None:
        """Epochs ``start`` to ``stop``, the latter not included."""
        for epoch in range(start, stop):
            loss = self._epoch(epoch)
            if not loss < float("inf"):
                got = f"a loss of {loss} in epoch {epoch}"
                raise InputError(message("a proxy that learns", got, "Lower lr, and look for broken inputs."))
            self.tell(epoch, loss)

    def _epoch(self, epoch: int) -> float:
        self.net.train()
        total = torch.zeros((), dtype=torch.float32, device=self.feed.device)
        seen = 0
        for indices, x, y in self.feed.batches(shuffled(self.feed.size, self.generator).long(), self.classes):
            past = (epoch + (seen + len(y) / 2) / self.feed.size) / self.recipe.epochs
            self.sgd.param_groups[0]["lr"] = self.recipe.rate(past)
            logits = self.net(x)
            loss = F.cross_entropy(logits, y)
            self.sgd.zero_grad()
            torch.autograd.backward(loss)
            self.sgd.step()
            if self.note is not None:
                self.note(epoch, indices, logits.detach().float(), y)
            total += loss.detach() * len(y)
            seen += len(y)
        return float(total) / seen


def _evaluate(net: nn.Module, head: nn.Linear, feed: _SampleReader) -> Iterator[tuple[Batch, Tensor, Tensor]]:
    """Every sample in evaluation mode: the batch, the inputs of the last layer, the logits."""
    net.eval()
    for batch in feed.batches(torch.arange(feed.size, device=CPU), head.out_features):
        with torch.no_grad(), _recorded_calls([head]) as seen:
            logits = net(batch[1])
        yield batch, seen[-1][1].float(), logits.float()


def _collect_outputs(net: nn.Module, head: nn.Linear, feed: _SampleReader) -> dict[str, Any]:
    """What the model makes of each sample."""
    labels = torch.zeros(feed.size, dtype=torch.int64, device=feed.device)
    features = torch.zeros(feed.size, head.in_features, dtype=torch.float32, device=feed.device)
    logits = torch.zeros(feed.size, head.out_features, dtype=torch.float32, device=feed.device)
    for (indices, _, y), f, z in _evaluate(net, head, feed):
        labels[indices], features[indices], logits[indices] = y, f, z
    weight = head.weight.detach().float().clone()
    return {"labels": labels, "features": features, "logits": logits, "head": weight, "bias": head.bias is not None}


def _collect_norms(net: nn.Module, head: nn.Linear, feed: _SampleReader, exact: bool) -> tuple[Tensor, Tensor]:
    """|p - y| and the gradient's norm of each sample, batch by batch."""
    errors = torch.zeros(feed.size, dtype=torch.float32, device=feed.device)
    gradients = torch.zeros_like(errors)
    for (indices, x, y), f, z in _evaluate(net, head, feed):
        errors[indices] = error = (z.softmax(1) - F.one_hot(y, z.shape[1])).norm(dim=1)
        squares = f.square().sum(1) + (head.bias is not None)
        gradients[indices] = _gradient_norms(net, x, y).float() if exact else error * squares.sqrt()
    return errors, gradients


def _gradient_norms(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The norm of each sample's own gradient, over all weights that train."""
    weights = {name: weight.detach() for name, weight in net.named_parameters() if weight.requires_grad}
    if not weights:
        expected = "a model with weights that train, for the gradients of the whole network"
        raise InputError(message(expected, "none", "Leave exact out: the last layer's need none."))
    fixed = {name: weight.detach() for name, weight in net.named_parameters() if not weight.requires_grad}
    fixed |= dict(net.named_buffers())

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(net, (weights, fixed), (x[None],)), y[None])

    rows = max(1, GRADIENTS // sum(weight.numel() for weight in weights.values()))
    norms = []
    for some, labels in zip(torch.split(x, rows), torch.split(y, rows), strict=True):
        parts = vmap(grad(loss), (None, 0, 0))(weights, some, labels)
        norms.append(sum(part.flatten(1).square().sum(1) for part in parts.values()).sqrt())
    return torch.cat(norms)


@contextmanager
def _recorded_calls(layers: list[nn.Linear]) -> Iterator[list[tuple[nn.Linear, Tensor, Tensor]]]:
    """The calls of these layers while it is open, in order: layer, input, output."""
    calls: list[tuple[nn.Linear, Tensor, Tensor]] = []

    def note(layer: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
        assert isinstance(layer, nn.Linear)
        calls.append((layer, given[0].detach(), made.detach()))

    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _last_layer(net: nn.Module, name: str, x: Tensor) -> nn.Linear:
    """The linear layer that makes the logits: the one named, or the one whose output is the model's."""
    layers = {key: module for key, module in net.named_modules() if isinstance(module, nn.Linear)}
    if name and name not in layers:
        remedy = f"Linear layers here: {', '.join(layers) or 'none'}."
        raise InputError(message("layer as the name of a linear layer", repr(name), remedy))
    net.eval()
    with torch.no_grad(), _recorded_calls([layers[name]] if name else list(layers.values())) as calls:
        logits = net(x)
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(x):
        got = f"shape {list(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(message("logits of shape [batch, K] from the model", got, "Wrap it, and return its logits."))
    made = [layer for layer, f, z in calls if f.ndim == 2 and z.shape == logits.shape and (name or _same(z, logits))]
    if not made:
        remedy = "Name the layer that makes them by layer=..., or wrap the model so that it ends in one."
        raise InputError(message("logits that a linear layer makes from [batch, d]", "others", remedy))
    return made[-1]


def _same(one: Tensor, other: Tensor) -> bool:
    """Number by number; broken inputs, which make NaN, are told of later."""
    return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def _make_model(make: Callable[[], nn.Module]) -> nn.Module:
    model = make()
    if not isinstance(model, nn.Module):
        raise InputError(
            message("a function that makes a model", f"one that makes {type(model).__name__}", "Check it.")
        )
    return model


def _find_device(model: Any, device: torch.device | str | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    weight = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return CPU if weight is None else torch.device(weight.device)


@contextmanager
def _restored_randomness(device: torch.device) -> Iterator[None]:
    """Dropout, initial weights and augmentations draw from global states; give them back as they were."""
    numpy = sys.modules.get("numpy")
    python, arrays = random.getstate(), None if numpy is None else numpy.random.get_state()
    lent = [] if device.type == "cpu" else [device]
    try:
        with torch.random.fork_rng(lent, device_type="cuda" if device.type == "cpu" else device.type):
            yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(arrays)


def _reseed(seed: int, device: torch.device) -> None:
    """Only what was borrowed: torch.manual_seed would reach every device there is."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


def _split_pair(batch: Any) -> tuple[Tensor, Tensor]:
    if isinstance(batch, (list, tuple)) and len(batch) >= 2 and all(isinstance(part, Tensor) for part in batch[:2]):
        return batch[0], batch[1]
    got = type(batch).__name__
    raise InputError(message("items (x, label) that collate to two tensors", got, "Wrap the data set to yield them."))


def _check_labels(labels: Tensor, count: int, classes: int) -> None:
    whole = not labels.is_floating_point() and not labels.is_complex() and labels.dtype != torch.bool
    if labels.shape != (count,) or not whole:
        got = f"{labels.dtype} of shape {list(labels.shape)}"
        raise InputError(message(f"one whole number a sample as label, shape [{count}]", got, "Number the classes."))
    low, high = (int(end) for end in labels.aminmax())
    if low < 0 or high >= classes:
        remedy = "The model's last layer has one output a class."
        raise InputError(message(f"labels from 0 to {classes - 1}", f"{low} to {high}", remedy))


def _check_counts(**counts: Any) -> None:
    for name, value in counts.items():
        least = 1 if name in ("runs", "batch_size") else 0
        check_count(name, value, least, "Leave it out for the default.")


def _check_rates(**rates: Any) -> None:
    for name, value in rates.items():
        if not is_number(value) or value < 0:
            raise InputError(message(f"{name} of at least 0", repr(value), "Leave it out for the default."))


def _check_source(model: Any, runs: int, early: int, epochs: int) -> None:
    if not callable(model):
        raise InputError(message("a model, or a function that makes one", type(model).__name__, "Pass the module."))
    if isinstance(model, nn.Module) and runs > 1:
        remedy = "Pass a function: all runs of one model would begin alike."
        raise InputError(message(f"for {runs} runs a function that makes a model", "one model", remedy))
    if early > epochs:
        raise InputError(message(f"early of at most {epochs}, the epochs", str(early), "Train longer, or look sooner."))
