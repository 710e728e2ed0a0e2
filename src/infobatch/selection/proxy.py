"""The proxy: a model that is trained once to collect evidence about each sample.

Only the evidence is used afterwards; the training that follows starts from its own model.
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
"""The fraction of the steps in which the learning rate rises; it falls in the others."""

Batch = tuple[Tensor, Tensor, Tensor]
"""Positions in the data set, inputs, labels."""


@dataclass(frozen=True)
class Progress:
    """Where ``gather`` is: ``done`` of ``total`` epochs over all runs, and the mean loss of the latest epoch.

    >>> import torch
    >>> from infobatch import selection
    >>> data = torch.utils.data.TensorDataset(torch.randn(20, 4), torch.arange(20) % 2)
    >>> show = lambda progress: print(f"epoch {progress.done} of {progress.total}")
    >>> evidence = selection.gather(torch.nn.Linear(4, 2), data, epochs=2, progress=show)
    epoch 1 of 2
    epoch 2 of 2
    """

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
    """Train a copy of ``model`` on ``dataset`` and record what the selectors need to know about each sample.

    Run 0 trains for all ``epochs``. It records ``correct`` and ``aum`` at each training step, before the update, and
    ``features``, ``logits`` and ``head`` after the last epoch, in evaluation mode. Each run records ``error_norms`` and
    ``grad_norms`` after ``early`` epochs; runs after the first end there. Training is SGD on the cross entropy, with a
    learning rate that rises to ``lr`` and falls to 0.

    The result depends only on the arguments: on a CPU bit for bit, on a GPU if its kernels are deterministic. The
    global random state is restored.

    Args:
        model: A model that returns logits [batch, K] from a linear last layer, or a function that creates one.
        dataset: A data set of items (x, label), preferably without augmentation.
        epochs: Epochs of run 0; 0 evaluates the model without training it.
        runs: Number of runs. More than one needs a function as ``model``, since runs start from different weights.
        early: Epochs after which norms are recorded; half of ``epochs`` by default.
        batch_size, lr, momentum, weight_decay: Settings of the training.
        seed: Determines the order of samples, initial weights and dropout.
        device: Where to train and where the evidence is stored; the model's device by default.
        layer: The name of the last layer, if it cannot be found automatically.
        exact: Whether ``grad_norms`` are those of the whole network, computed per sample, which is for small networks.
            By default they are those of the last layer, |p - y| |f|.
        validation: Held-out data; its features and logits become ``evidence.validation``.
        workers: Worker processes of the loader.
        progress: Called with a :class:`Progress` after every epoch.

    Returns:
        The evidence of all samples.

    Raises:
        InputError: If an argument is out of range, the data or the model do not fit, or the training diverges.

    >>> import torch
    >>> from infobatch import selection
    >>> data = torch.utils.data.TensorDataset(torch.randn(20, 4), torch.arange(20) % 2)
    >>> selection.gather(torch.nn.Linear(4, 2), data, epochs=2)
    Evidence(20 samples: labels, features, logits, head, correct, aum, error_norms, grad_norms)
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
        """Return the learning rate after this fraction of the run."""
        return self.lr * min(past / RISE, (1 - past) / (1 - RISE))


@dataclass(frozen=True)
class _ProgressReporter:
    """Calls ``listener`` with the progress over all runs."""

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
    """The batches of the next pass, as positions."""

    def __init__(self) -> None:
        self.batches: tuple[Tensor, ...] = ()

    def __iter__(self) -> Iterator[list[int]]:
        return (batch.tolist() for batch in self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _SampleReader:
    """Reads the data set in any order, each batch with its positions. A TensorDataset is indexed without a loader."""

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
        """Yield all samples in this order. No batch has a single sample, which batch norm could not train on."""
        cuts = list(torch.split(order, self.batch_size))
        if len(cuts) > 1 and len(cuts[-1]) == 1:
            cuts[-2:] = [torch.cat(cuts[-2:])]
        for indices, batch in zip(cuts, self._cut(cuts), strict=True):
            x, y = _split_pair(batch)
            if not self.read:  # only once: reading values would wait for the device
                _check_labels(y, len(indices), classes)
            yield indices.to(self.device), x.to(self.device), y.to(self.device, torch.int64)
        self.read = True

    def first(self) -> Tensor:
        """Return the inputs of the first two samples."""
        cuts = [torch.arange(min(2, self.size), device=CPU)]
        return _split_pair(next(iter(self._cut(cuts))))[0].to(self.device)

    def _cut(self, cuts: list[Tensor]) -> Iterator[Any]:
        if type(self.dataset) is TensorDataset:
            home = self.dataset.tensors[0].device
            return (self.dataset[indices.to(home)] for indices in cuts)
        self.order.batches = tuple(cuts)
        return iter(self.loader)


class _VisitHistory:
    """What run 0 records about each sample during training."""

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
                raise InputError(
                    message("a model with trainable weights", "none", "Pass epochs=0 to evaluate it without training.")
                )
            self.sgd = torch.optim.SGD(
                self.weights, recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay
            )

    def train(self, start: int, stop: int) -> None:
        """Train epochs ``start`` to ``stop - 1``."""
        for epoch in range(start, stop):
            loss = self._epoch(epoch)
            if not loss < float("inf"):
                got = f"a loss of {loss} in epoch {epoch}"
                raise InputError(message("a proxy with finite losses", got, "Lower lr, and check the inputs."))
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
    """Yield each batch in evaluation mode, with the inputs of the last layer and the logits."""
    net.eval()
    for batch in feed.batches(torch.arange(feed.size, device=CPU), head.out_features):
        with torch.no_grad(), _recorded_calls([head]) as seen:
            logits = net(batch[1])
        yield batch, seen[-1][1].float(), logits.float()


def _collect_outputs(net: nn.Module, head: nn.Linear, feed: _SampleReader) -> dict[str, Any]:
    """Collect labels, features and logits of all samples."""
    labels = torch.zeros(feed.size, dtype=torch.int64, device=feed.device)
    features = torch.zeros(feed.size, head.in_features, dtype=torch.float32, device=feed.device)
    logits = torch.zeros(feed.size, head.out_features, dtype=torch.float32, device=feed.device)
    for (indices, _, y), f, z in _evaluate(net, head, feed):
        labels[indices], features[indices], logits[indices] = y, f, z
    weight = head.weight.detach().float().clone()
    return {"labels": labels, "features": features, "logits": logits, "head": weight, "bias": head.bias is not None}


def _collect_norms(net: nn.Module, head: nn.Linear, feed: _SampleReader, exact: bool) -> tuple[Tensor, Tensor]:
    """Collect |p - y| and the gradient norm of all samples."""
    errors = torch.zeros(feed.size, dtype=torch.float32, device=feed.device)
    gradients = torch.zeros_like(errors)
    for (indices, x, y), f, z in _evaluate(net, head, feed):
        errors[indices] = error = (z.softmax(1) - F.one_hot(y, z.shape[1])).norm(dim=1)
        squares = f.square().sum(1) + (head.bias is not None)
        gradients[indices] = _gradient_norms(net, x, y).float() if exact else error * squares.sqrt()
    return errors, gradients


def _gradient_norms(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the norm of each sample's gradient over all trainable weights."""
    weights = {name: weight.detach() for name, weight in net.named_parameters() if weight.requires_grad}
    if not weights:
        expected = "a model with trainable weights, for the gradients of the whole network"
        raise InputError(message(expected, "none", "Leave exact out."))
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
    """Record the calls of these layers inside the context, in order: layer, input, output."""
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
    """Return the linear layer that computes the logits: the named one, or the one whose output is the model's."""
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
        remedy = "Pass the name of the last layer as layer=..., or wrap the model so that it ends in a linear layer."
        raise InputError(message("logits from a linear layer with inputs [batch, d]", "other logits", remedy))
    return made[-1]


def _same(one: Tensor, other: Tensor) -> bool:
    """Compare exactly. NaN equals NaN here, because non-finite inputs are reported later."""
    return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def _make_model(make: Callable[[], nn.Module]) -> nn.Module:
    model = make()
    if not isinstance(model, nn.Module):
        raise InputError(
            message(
                "a function that returns a model", f"one that returns {type(model).__name__}", "Return an nn.Module."
            )
        )
    return model


def _find_device(model: Any, device: torch.device | str | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    weight = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return CPU if weight is None else torch.device(weight.device)


@contextmanager
def _restored_randomness(device: torch.device) -> Iterator[None]:
    """Restore the global random states, which dropout, initial weights and augmentations use."""
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
    """Seed the CPU and this device only; torch.manual_seed would seed every device."""
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
    raise InputError(message("items (x, label) that collate to two tensors", got, "Wrap the data set to return them."))


def _check_labels(labels: Tensor, count: int, classes: int) -> None:
    is_integer = not labels.is_floating_point() and not labels.is_complex() and labels.dtype != torch.bool
    if labels.shape != (count,) or not is_integer:
        got = f"{labels.dtype} of shape {list(labels.shape)}"
        raise InputError(message(f"one integer label per sample, shape [{count}]", got, "Number the classes."))
    low, high = (int(end) for end in labels.aminmax())
    if low < 0 or high >= classes:
        remedy = "The last layer has one output per class."
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
        raise InputError(message("a model, or a function that returns one", type(model).__name__, "Pass the module."))
    if isinstance(model, nn.Module) and runs > 1:
        remedy = "Pass a function: all runs of one model would start from the same weights."
        raise InputError(message(f"a function that returns a model, for {runs} runs", "one model", remedy))
    if early > epochs:
        raise InputError(message(f"early of at most {epochs}, the epochs", str(early), "Raise epochs, or lower early."))
