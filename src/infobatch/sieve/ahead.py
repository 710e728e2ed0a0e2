"""Look one batch ahead; on a GPU, on a CUDA stream of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from ..errors import InputError, message
from ..loader import DataLoader
from .passed import Passed
from .rows import device_of

if TYPE_CHECKING:
    from .sieve import Sieve


class Peekable:
    """An iterator whose next item can be seen before it is taken."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = iter(items)
        self._peeked: list[Any] = []

    def __next__(self) -> Any:
        return self._peeked.pop() if self._peeked else next(self._items)

    def peek(self) -> Any:
        """Return the next item without taking it; raise StopIteration if there is none."""
        if not self._peeked:
            self._peeked.append(next(self._items))
        return self._peeked[0]


def look_ahead(sieve: Sieve, loader: Iterable[Any], move: Callable[[Any], Any] | None) -> Iterator[tuple[Any, ...]]:
    """Return an iterator over what the sieve passes on; it has looked at the next batch when it yields one."""
    if sieve.look is not None and sieve.look.reads_model:
        got = f"{type(sieve.look).__name__}, which reads the model that is being trained meanwhile"
        remedy = "Call the sieve on each batch instead of sieve.ahead(loader)."
        raise InputError(message("a look that runs beside the training step, such as Proxy", got, remedy))
    source = loader.read_ahead() if isinstance(loader, DataLoader) else Peekable(loader)
    return _walk(sieve, source, move or (lambda batch: batch))


def _walk(sieve: Sieve, source: Any, move: Callable[[Any], Any]) -> Iterator[tuple[Any, ...]]:
    upcoming: tuple[Any, Passed, Any] | None = None
    sieve._ahead = None
    while True:
        sieve._check_answered()
        try:
            raw = next(source)
        except StopIteration:
            return
        batch, passed, event = _look(sieve, move(raw)) if upcoming is None else upcoming
        try:
            following = source.peek()
        except StopIteration:
            upcoming = sieve._ahead = None
        else:
            upcoming = _look(sieve, move(following))
            sieve._ahead = upcoming[1], upcoming[0]  # it stays when the loop is left: a run may be saved after that
        if event is not None:
            _hand_over(passed, event)
        yield sieve._deliver(batch, passed, are_parts=_are_parts(batch))


def _are_parts(batch: Any) -> bool:
    return isinstance(batch, (list, tuple)) and not hasattr(batch, "_fields")


def _look(sieve: Sieve, batch: Any) -> tuple[Any, Passed, Any]:
    """Look at a batch on the sieve's own stream; return the event after which the result may be read."""
    device, are_parts = device_of(batch), _are_parts(batch)
    if device.type != "cuda":
        return batch, sieve._examine(batch, are_parts=are_parts), None
    if sieve._stream is None:
        sieve._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    sieve._stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(sieve._stream):
        passed = sieve._examine(batch, are_parts=are_parts)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
    return batch, passed, event


def _hand_over(passed: Passed, event: Any) -> None:
    """Let the current stream wait for the look, and keep the memory of its result until that stream is done."""
    for tensor in passed.tensors():
        stream = torch.cuda.current_stream(tensor.device)
        stream.wait_event(event)
        tensor.record_stream(stream)
