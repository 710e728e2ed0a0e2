"""A test for your own training loop: stopped anywhere and resumed, does it end as if it had never been stopped?

``import infobatch`` does not load this module; import it where you test.
"""

from __future__ import annotations

import io
import random
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pickle import UnpicklingError
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint

from .checks import check_count, describe
from .errors import message
from .snapshot import copy_containers

__all__ = ["Training", "assert_resumable"]


def __dir__() -> list[str]:
    return [*__all__]


class Training(Protocol):
    """What ``assert_resumable`` needs of a training: any class with these methods, derived from this one or not.

    >>> import torch
    >>> from infobatch.testing import Training, assert_resumable
    >>> class Toy(Training):
    ...     def __init__(self):
    ...         self.position, self.steps = torch.zeros(2), 0
    ...     def __iter__(self):
    ...         while self.steps < 10:
    ...             self.position += 1 + self.steps
    ...             self.steps += 1
    ...             yield self.position.sum()
    ...     def state_dict(self):
    ...         return {"position": self.position, "steps": self.steps}
    ...     def load_state_dict(self, state):
    ...         self.position, self.steps = state["position"], state["steps"]
    >>> assert_resumable(Toy)
    """

    def __iter__(self) -> Iterator[Any]:
        """Train from where it stands to the end of the run.

        Yields:
            Anything, wherever the loop may save, usually after each step. What is yielded, as the loss, is compared.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return all that the loop saves, as ``torch.load(weights_only=True)`` reads it.

        Returns:
            Tensors, numbers and text in dicts, lists and tuples.
        """
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state_dict`` was called.

        Args:
            state: What ``state_dict`` returned.
        """
        ...


Make = Callable[[], Training]
Results = dict[int, dict[str, Any]]
"""What each step yielded, by the number of the step, from 1; then, after the last step, the state."""


def assert_resumable(make_training: Callable[[], Training], stops: int = 8) -> None:
    """Check that a training that is stopped and resumed ends bit for bit like an uninterrupted one.

    An uninterrupted run is compared with one that is saved at several steps, with runs that are resumed at each of
    these steps, and with one that is stopped and resumed at all of them in turn. States go through ``torch.save`` and
    ``torch.load(weights_only=True)``. Stops lie at both ends of the run and at random; if the training has an attribute
    ``epoch``, the epoch that the next step belongs to, also in the middle of an epoch and around its beginning.

    torch, ``random`` and NumPy are seeded alike before each call of ``make_training``, as in a script that is started
    again, and get their random states back at the end.

    Args:
        make_training: Returns a new training each time: an object that trains while it is iterated over, with
            ``state_dict`` and ``load_state_dict``; see ``Training``. Keep it small: it is trained about
            ``stops / 2 + 3`` times.
        stops: The number of steps at which to stop.

    Raises:
        AssertionError: If the runs differ. It names the first step that does, the first entry of the state that loading
            did not restore, and the attributes of the training, or the random states, that it did not restore.

    >>> import torch, infobatch
    >>> from infobatch.testing import assert_resumable
    >>> criterion = torch.nn.CrossEntropyLoss(reduction="none")
    >>> class Training:
    ...     parts = ("model", "optimizer", "train_data", "sieve")
    ...     def __init__(self):
    ...         data = torch.utils.data.TensorDataset(torch.randn(60, 4), torch.arange(60) % 3)
    ...         self.train_data = infobatch.InfoBatch(data, num_epochs=8)
    ...         self.loader = infobatch.DataLoader(self.train_data, batch_size=20)
    ...         self.model = torch.nn.Linear(4, 3)
    ...         self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
    ...         proxy = infobatch.sieve.Proxy(torch.nn.Linear(4, 3), criterion)
    ...         self.sieve = infobatch.Sieve(proxy, infobatch.sieve.hardest(keep=0.5), num_steps=8 * 3)
    ...     @property
    ...     def epoch(self):
    ...         return self.train_data.epoch
    ...     def __iter__(self):
    ...         for _ in range(self.train_data.epoch, 8):
    ...             for x, y in self.loader:
    ...                 x, y, weight = self.sieve(x, y)
    ...                 loss, score = self.sieve.expand(criterion(self.model(x), y))
    ...                 loss = self.train_data.update(loss, score=score)
    ...                 self.optimizer.zero_grad()
    ...                 loss.backward()
    ...                 self.optimizer.step()
    ...                 yield loss
    ...     def state_dict(self):
    ...         return {name: getattr(self, name).state_dict() for name in self.parts}
    ...     def load_state_dict(self, state):
    ...         for name in self.parts:
    ...             getattr(self, name).load_state_dict(state[name])
    >>> assert_resumable(Training)
    """
    stops = check_count("stops", stops, 1, "It is a number of steps; 8 is the default.")
    before = [(put, get()) for _, get, put in _generators()]
    try:
        _check(make_training, stops)
    finally:
        for put, state in before:
            put(state)


def _check(make: Make, stops: int) -> None:
    results, epochs, _ = _train(make, [])
    if len(results) == 1:
        raise AssertionError(message("a training of at least one step", "none", "Yield after each step."))
    chosen = choose_stops(epochs, stops)
    results_of_saved, _, states = _train(make, chosen)
    text = _compare(results, results_of_saved)[1]
    if text is not None:
        expected = f"a training that is saved after {_listed(chosen)} steps to be the same as one that is not"
        remedy = (
            "Let state_dict() only read; seed in make_training what does not draw from torch, random or NumPy; "
            "on a GPU call torch.use_deterministic_algorithms(True)."
        )
        raise AssertionError(message(expected, text, remedy))
    for stop in chosen:
        _check_resumed(make, results, states[stop], [stop])
    _check_resumed(make, results, states[chosen[0]], chosen)


def choose_stops(epochs: list[Any], count: int) -> list[int]:
    """Return up to ``count`` numbers of steps after which to stop, in ascending order.

    Args:
        epochs: The epoch that the next step belongs to, after 0, 1, 2, ... steps.
        count: How many stops are wanted.

    >>> choose_stops([0, 0, 0, 1, 1, 1, 2], 5)
    [0, 2, 3, 4, 6]
    """
    last = len(epochs) - 1
    edges = [at for at in range(1, last) if epochs[at] != epochs[at - 1]]
    edge = edges[len(edges) // 2] if edges else last // 2
    end = next((other for other in edges if other > edge), last)
    wanted = [(edge + end) // 2, edge, edge + 1, edge - 1, last, 0]
    wanted += random.Random(0).sample(range(last + 1), last + 1)
    possible = dict.fromkeys(at for at in wanted if 0 <= at <= last)
    return sorted(list(possible)[:count])


# ---- runs ------------------------------------------------------------------------------------------------------


def _run_steps(
    make: Make, state: bytes | None, begin: int, limit: int | None = None
) -> Iterator[tuple[int, Training, Any]]:
    """Train from a state, reached after ``begin`` steps, as a script does that is started again.

    Yields:
        The number of steps done, the training, and what the step yielded; first before any step.
    """
    _seed_all()
    training = make()
    if state is not None:
        training.load_state_dict(_unpack(state))
    yield begin, training, None
    for step, result in enumerate(islice(training, limit), begin + 1):
        yield step, training, result


def _train(
    make: Make, save_after: list[int], state: bytes | None = None, begin: int = 0
) -> tuple[Results, list[Any], dict[int, bytes]]:
    """Train to the end of the run, or to the last save if it is resumed.

    Returns:
        The results; the epochs that the next step belongs to, before the first step and after each; the states that
        were saved, by the number of steps before them.
    """
    results: Results = {}
    epochs, states, limit = [], {}, None if state is None else save_after[-1] - begin
    for step, training, result in _run_steps(make, state, begin, limit):
        if step > begin:
            results[step] = _flatten(result, f"the result of step {step}")
        epochs.append(getattr(training, "epoch", None))
        if step in save_after:
            states[step] = _pack(training.state_dict())  # inside the loop, as scripts do
    results[step + 1] = _flatten(_unpack(_pack(training.state_dict())), "the state at the end")
    return results, epochs, states


def _check_resumed(make: Make, right: Results, state: bytes, stops: list[int]) -> None:
    """Check that a run resumed at the first stop, and stopped again at the others, has the right results."""
    total, wrong, states = len(right) - 1, {}, {stops[0]: state}
    for begin, end in zip(stops, [*stops[1:], total + 1], strict=True):
        results, _, saved = _train(make, [end], states[begin], begin)
        wrong.update(results)
        states[end] = saved.get(end, states[begin])
    step, text = _compare(right, wrong, stops[0])
    if text is not None:
        stop = max(at for at in stops if at < step or at == stops[0])
        expected = (
            f"a training that is stopped after {_listed(stops)} of {total} steps to continue as if it had not been"
        )
        entry, remedy = _explain(make, states[stop], stop, step)
        raise AssertionError(message(expected, f"{text}; after loading, {entry}" if entry else text, remedy))


def _compare(right: Results, wrong: Results, begin: int = 0) -> tuple[int, str | None]:
    """Return the first step after ``begin`` whose results differ, and how, in words."""
    for step in range(begin + 1, max(*right, *wrong) + 1):
        text = first_difference(right.get(step, {}), wrong.get(step, {}))
        if text is not None:
            return step, text
    return 0, None


# ---- explanations ----------------------------------------------------------------------------------------------


def _explain(make: Make, state: bytes, stop: int, step: int) -> tuple[str | None, str]:
    """Return the first entry of the state that loading did not restore, if any, and what to do."""
    right, wrong = _glance(make, None, 0, stop), _glance(make, state, stop, stop)
    entry = first_difference(right["state"], wrong["state"])
    parts = _names_that_differ(right["parts"], wrong["parts"])
    if parts:
        return entry, f"Save and load the state of {_listed(parts)}, which loading did not restore."
    if entry is not None:
        return entry, "Let state_dict() save it as it is, and load_state_dict() restore it."
    drawn = _names_that_differ(right["random"], wrong["random"])
    if drawn:
        return None, f"Save and restore {_listed(drawn)}, which dropout, augmentation and loaders draw from."
    right, wrong = _glance(make, None, 0, step), _glance(make, state, stop, step)
    if _names_that_differ(right["random"], wrong["random"]):
        remedy = "Other random numbers were drawn after loading: each iterator of torch's DataLoader draws one; "
        return None, remedy + "infobatch.DataLoader puts it back."
    return None, "Look for what changes in training and is not in state_dict()."


def _glance(make: Make, state: bytes | None, begin: int, at: int) -> dict[str, dict[str, Any]]:
    """Return what can be seen of a training after a number of steps: its state, its attributes, the random states."""
    steps = _run_steps(make, state, begin)  # held, so that the state below is one from inside the loop
    training = [training for _, training, _ in islice(steps, at - begin + 1)][-1]
    attributes = getattr(training, "__dict__", {})
    parts = {name: one for name, one in attributes.items() if callable(getattr(one, "state_dict", None))}
    return {
        "random": {name: _flatten(get()) for name, get, _ in _generators()},
        "state": _flatten(_unpack(_pack(training.state_dict()))),
        "parts": {name: _flatten(one.state_dict()) for name, one in parts.items()},
    }


def _names_that_differ(right: dict[str, Any], wrong: dict[str, Any]) -> list[str]:
    return [name for name in right if name in wrong and first_difference(right[name], wrong[name]) is not None]


def first_difference(right: dict[str, Any], wrong: dict[str, Any]) -> str | None:
    """Return in words the first of the named tensors and plain values that are not the same bit for bit.

    >>> first_difference({"a.0": 1, "a.1": 2.0, "b": 0}, {"a.0": 1, "a.1": 3.0})
    'a.1 is 3.0 instead of 2.0'
    """
    for name in sorted({**right, **wrong}):
        if name not in wrong or name not in right:
            return f"{name} is {'new' if name in wrong else 'missing'}"
        one, other = right[name], wrong[name]
        if _text(one) != _text(other):
            return f"{name} is {_text(other)[:60]} instead of {_text(one)[:60]}"
        if isinstance(one, Tensor):
            unlike = (_bytes_of(one) != _bytes_of(other)).any(1)
            if unlike.any():
                values = " instead of ".join(str(each.flatten()[unlike][0].item()) for each in (other, one))
                return f"{name} differs in {int(unlike.sum())} of {one.numel()} values, first in {values}"
    return None


def _text(value: Any) -> str:
    """Return a text that is the same for the same plain values, NaN included, and for tensors of the same kind."""
    return describe(value) if isinstance(value, Tensor) else repr(value)


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.flatten().view(torch.uint8).view(tensor.numel(), tensor.element_size())


def _flatten(value: Any, name: str = "") -> dict[str, Any]:
    """Return copies of the entries of a structure by their names; an empty container is an entry."""
    if isinstance(value, (dict, list, tuple)) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        inside = [_flatten(entry, f"{name}.{key}" if name else str(key)) for key, entry in items]
        return {path: entry for flat in inside for path, entry in flat.items()}
    return {name: torch.as_tensor(value).detach().cpu().clone() if hasattr(value, "__array__") else value}


def _listed(values: list[Any]) -> str:
    *others, last = map(str, values)
    return f"{', '.join(others)} and {last}" if others else last


# ---- states ----------------------------------------------------------------------------------------------------


def _pack(state: Any) -> bytes:
    """Return a state as a file holds it, written as by ``infobatch.save``."""
    file = io.BytesIO()
    torch.save(copy_containers(state), file)
    return file.getvalue()


def _unpack(saved: bytes) -> Any:
    """Return a state that ``_pack`` wrote, as another process would read it."""
    try:
        return torch.load(io.BytesIO(saved), weights_only=True)
    except UnpicklingError as error:
        got = " and ".join(sorted(get_unsafe_globals_in_checkpoint(io.BytesIO(saved)))) or str(error)
        remedy = "Convert it in state_dict(): torch.load(weights_only=True) reads nothing else."
        raise AssertionError(message("a state of tensors, numbers and text", got, remedy)) from error


# ---- global random states --------------------------------------------------------------------------------------


def _seed_all() -> None:
    torch.manual_seed(0)  # on all devices
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)


def _generators() -> list[tuple[str, Callable[[], Any], Callable[[Any], Any]]]:
    """Return for each global generator the call that returns its state, in words and as a function, and its inverse."""
    found: list[tuple[str, Callable[[], Any], Callable[[Any], Any]]] = [
        ("torch.get_rng_state()", torch.get_rng_state, torch.set_rng_state),
        ("random.getstate()", random.getstate, random.setstate),
    ]
    if torch.cuda.is_available():
        found.append(("torch.cuda.get_rng_state_all()", torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all))
    if "numpy" in sys.modules:
        numpy = sys.modules["numpy"].random
        found.append(("numpy.random.get_state()", numpy.get_state, numpy.set_state))
    return found
