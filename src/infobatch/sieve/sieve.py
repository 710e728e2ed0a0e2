"""The sieve: looks at a batch, passes some of its rows on, and reduces their losses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..adapters.per_sample import PerSample
from ..checks import check_count, describe
from ..errors import InputError, MisalignedError, message
from ..plan import generator_for
from .ahead import look_ahead
from .amount import count_kept
from .cost import SieveSummary
from .looks import Called, Look, check_losses, device_of
from .methods import adaptive
from .passed import Passed
from .rows import count_rows, select_rows
from .rules import Choice, choose_tokens
from .sieve_method import Seen, SieveMethod, check_method
from .sieve_state import FORMAT, REBUILD, check_fields, check_sieve_state, load_passed, save_passed
from .undisturbed import kept_random_state, not_compiled

ONE_LOSS = 'Compute them from the batch that the sieve returned, with reduction="none".'


class Sieve:
    """Pass on the part of each batch that is worth a training step.

    A fresh look at the batch, such as the losses of a small network, decides. The number of steps stays, and batches
    get smaller. Nothing is remembered about a sample, so any loader will do, streams and single epochs included.

    Args:
        look: A ``Proxy``, ``Own``, ``Reference`` or other ``Look``, or a function (batch) -> losses of shape [batch].
        method: One of ``infobatch.sieve``: ``adaptive()``, the default, or for example ``hardest(keep=0.5)``.
        num_steps: The number of batches of the whole run, for the schedule of a proxy and for methods that work in a
            part of the run.
        seed: What is drawn by lot is a function of the losses, the number of the batch and this seed.
        select: For batches of a structure of your own: a function (batch, rows) that returns the same batch with these
            rows only.

    >>> import torch, infobatch
    >>> criterion = torch.nn.CrossEntropyLoss(reduction="none")
    >>> model, small = torch.nn.Linear(8, 3), torch.nn.Linear(8, 3)
    >>> proxy = infobatch.sieve.Proxy(small, criterion)
    >>> sieve = infobatch.Sieve(proxy, infobatch.sieve.hardest(keep=0.5), num_steps=100)
    >>> x, y, weight = sieve(torch.randn(32, 8), torch.arange(32) % 3)
    >>> loss = sieve.reduce(criterion(model(x), y))
    >>> x.shape, loss.shape
    (torch.Size([16, 8]), torch.Size([]))
    """

    def __init__(
        self,
        look: Look | Callable[[Any], Tensor] | None,
        method: SieveMethod | None = None,
        *,
        num_steps: int | None = None,
        seed: int = 0,
        select: Callable[[Any, Tensor], Any] | None = None,
    ) -> None:
        self.method = adaptive() if method is None else check_method(method)
        if num_steps is not None:
            num_steps = check_count("num_steps", num_steps, 1, "It is the number of batches of the whole run.")
        elif self.method.is_windowed:
            remedy = "Pass num_steps=num_epochs * len(loader): this method works in a part of the run."
            raise InputError(message("the number of batches of the whole run", "none", remedy))
        self.num_steps = num_steps
        self.seed = check_count("seed", seed, 0, "Any value will do; 0 is the default.")
        self.look = _as_look(look, self.method)
        self._select = select
        self._amount = self.method.make_amount()
        self._step = self._rows = self._kept = 0
        self._not_finite: Tensor | int = 0
        self._passed: Passed | None = None
        self._ahead: Passed | None = None
        """What was decided about the batch that comes next, while the sieve looks one batch ahead."""
        self._stream: Any = None
        """The CUDA stream on which the sieve looks ahead."""

    # ---- the training loop -------------------------------------------------------------------------------

    @not_compiled
    def __call__(self, *batch: Any) -> tuple[Any, ...]:
        """Return the rows of a batch that are passed on, and their weights.

        Args:
            batch: The parts of the batch, as ``sieve(x, y)``, or the batch as one object, as ``sieve(batch)``.

        Returns:
            What was given, with fewer rows, and the weights, shape [rows]: ``x, y, weight`` or ``batch, weight``.

        Raises:
            InputError: If the look does not return one loss per row, or parts of the batch differ in rows.
        """
        whole, is_one = (batch[0], True) if len(batch) == 1 else (batch, False)
        return self._deliver(whole, self._examine(whole), is_one=is_one)

    def ahead(self, loader: Iterable[Any], move: Callable[[Any], Any] | None = None) -> Iterator[tuple[Any, ...]]:
        """Iterate over a loader, and look one batch ahead: on a GPU the look runs beside the training step.

        Use it in place of calling the sieve, with looks that do not read the model, such as ``Proxy``.

        Args:
            loader: Any iterable of batches. An ``infobatch.DataLoader`` still knows whose losses come back.
            move: Moves a batch to the device; None leaves batches where they are.

        Yields:
            What the sieve returns for each batch: ``x, y, weight`` for batches (x, y), else ``batch, weight``.

        >>> import torch, infobatch
        >>> loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(8, 1)), batch_size=4)
        >>> sieve = infobatch.Sieve(lambda batch: batch[0].sum(1), infobatch.sieve.hardest(keep=0.5))
        >>> [tuple(x.shape) for x, weight in sieve.ahead(loader)]
        [(2, 1), (2, 1)]
        """
        return look_ahead(self, loader, move)

    @not_compiled
    def reduce(self, losses: Tensor) -> Tensor:
        """Return the scalar to call ``backward`` on: sum(weight * loss) / rows of the whole batch.

        So a step is as large as one on the whole batch whose other rows have no gradient, and nothing grows. With
        weights 1/chance its expectation is the mean loss of the whole batch.

        Args:
            losses: The losses of the rows passed on, shape [rows], from the model that trains.
        """
        passed = self._take(losses)
        return passed.weigh(losses).sum() / passed.count()

    @not_compiled
    def expand(self, losses: Tensor) -> PerSample:
        """Return losses and scores of the whole batch, for ``train_data.update(loss, score=score)``.

        A row that was left out has loss 0, so that it has no gradient, and an unknown score, so that it keeps the one
        it had. With ``Own`` as the look, its score is the loss that the look found.

        Args:
            losses: The losses of the rows passed on, shape [rows], from the model that trains.

        >>> import torch, infobatch
        >>> data = torch.utils.data.TensorDataset(torch.rand(8, 1))
        >>> train_data = infobatch.InfoBatch(data, num_epochs=3)
        >>> sieve = infobatch.Sieve(lambda batch: batch[0].sum(1), infobatch.sieve.hardest(keep=0.5))
        >>> for (x,) in infobatch.DataLoader(train_data, batch_size=4):
        ...     (x,), weight = sieve((x,))
        ...     loss, score = sieve.expand(x.square().sum(1))
        ...     loss = train_data.update(loss, score=score)
        """
        passed = self._take(losses)
        if passed.valid is not None:
            remedy = "Use sieve.reduce; scores belong to samples."
            raise InputError(message("a method that chooses rows", repr(self.method), remedy))
        if self.look is None or passed.losses is None:
            return passed.expand(losses, known=None)
        return passed.expand(losses, known=self.look.model_losses(passed.losses))

    def summary(self, model_flops: float | None = None) -> SieveSummary:
        """Return what the sieve has done so far; printed, it is one line.

        Args:
            model_flops: FLOPs of the model's forward pass per row, from ``infobatch.sieve.count_flops(model, x)``;
                unknown to the sieve, except with ``Own`` as its look.
        """
        looking = 0.0 if self.look is None else self.look.spent()
        if model_flops is None and self.look is not None:
            model_flops = self.look.model_flops()
        full = 3.0 * model_flops * self._rows if model_flops else None
        return SieveSummary(self._step, self._rows, self._kept, int(self._not_finite), looking, full)

    # ---- saving and resuming -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return everything that changes in the course of a run, the proxy and its optimizer included.

        With several ranks each has its own proxy: save the state of each.
        """
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
        return {
            "format": FORMAT,
            "method": repr(self.method),
            "seed": self.seed,
            "num_steps": self.num_steps,
            "step": self._step,
            "rows": self._rows,
            "kept": self._kept,
            "not_finite": int(self._not_finite),
            "amount": self._amount.state_dict(),
            "look": {} if self.look is None else self.look.state_dict(),
            "ahead": save_passed(self._ahead),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state_dict`` was called; the sieve must have been made with the same arguments.

        Raises:
            StateError: If the state is damaged or of another sieve. Nothing is loaded then.
        """
        check_sieve_state(state, repr(self.method), self.seed, self.num_steps)
        ahead = load_passed(state["ahead"])
        amount = self.method.make_amount()
        amount.load_state_dict(state["amount"])
        if self.look is None:
            check_fields(state["look"], set(), "the state of a look", REBUILD)
        else:
            self.look.load_state_dict(state["look"])
        self._amount, self._ahead, self._passed = amount, ahead, None
        self._step, self._rows, self._kept = (state[name] for name in ("step", "rows", "kept"))
        self._not_finite = state["not_finite"]

    # ---- inside ------------------------------------------------------------------------------------------

    def _examine(self, batch: Any) -> Passed:
        """Look at a batch and decide what to pass on."""
        if self._ahead is not None:  # decided before the training was saved
            passed, self._ahead = self._ahead, None
            if passed.size != count_rows(batch):
                expected = f"the batch of {passed.size} rows that followed when the training was saved"
                remedy = "Resume the loader where it was; save inside the loop."
                raise MisalignedError(message(expected, f"one of {count_rows(batch)}", remedy))
            return passed.to(device_of(batch))
        device = device_of(batch)
        is_capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if is_capturing and not self._amount.is_constant:
            remedy = "Choose one with a fixed share, such as hardest(keep=0.5), or call the sieve outside of the graph."
            raise InputError(
                message("inside a CUDA graph a method that treats all batches alike", repr(self.method), remedy)
            )
        progress = None if self.num_steps is None else min(self._step / self.num_steps, 1.0)
        decision = self._amount.decide(self._step, progress)
        is_needed = decision.share < 1 or decision.is_measured
        losses = None
        if self.look is not None:
            with torch.no_grad(), kept_random_state(device):
                if is_capturing:  # a graph would repeat a step of the proxy at every replay
                    losses = self.look.look(batch)
                else:
                    losses = self.look.visit(batch, self._step, progress, is_needed=is_needed)
        generator = None if is_capturing else generator_for(self.seed, self._step, device)
        self._step += 1
        if not is_needed:
            size = count_rows(batch)
            return Passed(size, None, torch.ones(size, device=device))
        if losses is None:  # the method needs no look
            losses = torch.zeros(count_rows(batch), device=device)
        losses = losses.detach() if isinstance(losses, Tensor) else losses
        return self._decide(batch, losses, decision.share, decision.is_measured, generator)

    def _decide(self, batch: Any, losses: Tensor, share: float, is_measured: bool, generator: Any) -> Passed:
        """Choose the rows, or the tokens, by the losses of the look."""
        valid = None if self.method.valid_tokens is None else self.method.valid_tokens(batch)
        if valid is None:
            check_losses(losses)
        elif not isinstance(losses, Tensor) or losses.shape != valid.shape:
            remedy = "The look returns one loss per token, in the shape of valid(batch)."
            raise InputError(message(f"losses of shape {list(valid.shape)}", describe(losses), remedy))
        finite = losses.isfinite()
        self._not_finite = self._not_finite + finite.numel() - finite.sum()
        ranked = torch.where(finite, losses, -torch.inf)
        if valid is not None:
            weights = choose_tokens(ranked, valid, share)
            return Passed(len(losses), None, weights, losses, valid=valid)
        size = len(losses)
        own = None if self.look is None else self.look.model_losses(losses)
        if is_measured and own is not None:
            self._amount.observe(ranked.argsort(descending=True), own)
            is_measured = False
        k = count_kept(share, size)
        if k == size:
            return Passed(size, None, torch.ones(size, device=losses.device), losses, is_measured)
        choice = self._check_choice(self.method.rule(Seen(ranked, k, generator, batch)), k)
        weights = torch.where(finite[choice.rows], choice.weights, 0.0)
        return Passed(size, choice.rows, weights, losses)

    def _deliver(self, batch: Any, passed: Passed, *, is_one: bool) -> tuple[Any, ...]:
        """Return the rows passed on, and remember them for the losses that come back."""
        if passed.rows is not None:
            if self._select is not None:
                batch = self._select(batch, passed.rows)
            else:
                batch = select_rows(batch, passed.rows, passed.size)
        self._passed = passed
        self._rows += passed.size
        self._kept += passed.size if passed.rows is None else len(passed.rows)
        return (batch, passed.weights) if is_one else (*batch, passed.weights)

    def _take(self, losses: Tensor) -> Passed:
        """Return what the losses belong to, and let a measured batch be observed, once."""
        passed = self._passed
        if passed is None:
            raise MisalignedError(
                message("a batch from the sieve before its losses", "none", "Call sieve(x, y) first.")
            )
        if not isinstance(losses, Tensor) or losses.shape != passed.weights.shape or not losses.is_floating_point():
            expected = f"losses of shape {list(passed.weights.shape)}, one for each weight of the latest batch"
            raise InputError(message(expected, describe(losses), ONE_LOSS))
        if passed.is_measured:
            assert passed.losses is not None
            ranked = torch.where(passed.losses.isfinite(), passed.losses, -torch.inf)
            self._amount.observe(ranked.argsort(descending=True), losses.detach())
            self._passed = passed.observed()
        return passed

    def _check_choice(self, choice: Choice, k: int) -> Choice:
        rows, weights = choice
        if rows.shape != (k,) or rows.dtype != torch.int64 or weights.shape != (k,):
            expected = f"a rule that returns exactly {k} rows as int64 and their {k} weights"
            got = f"{describe(rows)} and {describe(weights)}"
            raise InputError(message(expected, got, "Return Choice(rows, weights); see infobatch.sieve.rules."))
        return choice


def _as_look(look: Any, method: SieveMethod) -> Look | None:
    if isinstance(look, Look):
        return look
    if look is None and not method.needs_look:
        return None
    if callable(look) and not isinstance(look, torch.nn.Module):
        return Called(look)
    got = "None" if look is None else f"a {type(look).__name__}"
    remedy = "Wrap a small network: Proxy(net, criterion); or the model itself: Own(model, criterion)."
    raise InputError(message("a look, or a function (batch) -> losses", got, remedy))
