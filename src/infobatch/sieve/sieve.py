"""The sieve: looks at a batch, passes some of its rows on, and reduces their losses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..adapters.per_sample import PerSample
from ..checks import check_count, check_score, describe
from ..errors import InputError, MisalignedError, message, plural
from ..plan import generator_for
from .ahead import look_ahead
from .amount import Decision, count_kept
from .cost import SieveSummary, step_of
from .looks import Called, Look, make_look
from .methods import adaptive
from .passed import Passed, Waiting
from .rows import (
    check_losses,
    check_rows,
    check_valid,
    count_rows,
    device_of,
    mark_of,
    select_column,
    select_rows,
    tensors_of,
)
from .rules import Choice, choose_tokens
from .sieve_method import Seen, SieveMethod, check_method
from .sieve_state import FORMAT, REBUILD, check_fields, check_sieve_state, load_passed, save_passed
from .undisturbed import kept_modes, kept_random_state, not_compiled, uncached_autocast

LOOKING = 0x100C  # so that what a look draws has nothing in common with the choice of rows
ONE_LOSS = 'Compute them from the batch that the sieve returned, with reduction="none".'


class Sieve:
    """Pass on the part of each batch that is worth a training step.

    A fresh look at the batch, such as the losses of a small network, decides. The number of steps stays the same, and
    batches get smaller. Nothing is remembered about a sample, so any loader works, including streams and single epochs.

    Args:
        look: A ``Proxy``, ``Own``, ``Reference`` or other ``Look``, or a function (batch) -> losses of shape [batch].
            A function is called without gradients; torch's random states, and the modes of networks that it refers to,
            are restored. BatchNorm statistics are not: to look with the model, use ``Own(model, losses=function)``.
        method: One of ``infobatch.sieve``: ``adaptive()``, the default, or for example ``hardest(keep=0.5)``.
        num_steps: The number of batches of the whole run, for the schedule of a proxy and for methods active in part of
            the run.
        seed: Whatever is sampled at random is a function of the losses, the number of the batch and this seed.
        select: For batches of a structure of your own: a function (batch, rows) that returns the same batch with these
            rows only. If the method needs no look, the first tensor gives the number of rows.

    Raises:
        InputError: If an argument has the wrong type, or a method active in part of the run gets no ``num_steps``.

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
        self.look = make_look(look, is_needed=self.method.needs_look)
        self._select = select
        self._amount = self.method.make_amount()
        self._step = self._rows = self._kept = 0
        self._not_finite: Tensor | int = 0
        self._waiting = Waiting()
        self._has_losses = False
        """Whether losses have ever come back."""
        self._is_look_checked = False
        """Whether the look has been checked against the model that trains."""
        self._ahead: tuple[Passed, Any] | None = None
        """What was decided about the batch that comes next, and this batch, where the sieve looks one batch ahead."""
        self._resumed: tuple[Passed, int] | None = None
        """The same in the run that was saved, with the mark of the batch."""
        self._stream: Any = None
        """The CUDA stream on which the sieve looks ahead."""

    def __repr__(self) -> str:
        """Return the look by its class, the method and what has been done so far.

        >>> import infobatch
        >>> infobatch.Sieve(lambda losses: losses, infobatch.sieve.hardest(keep=0.5), num_steps=100)
        Sieve(a function, hardest(keep=0.5), num_steps=100): 0 batches so far
        """
        look = "a function" if isinstance(self.look, Called) else "no look"
        if self.look is not None and not isinstance(self.look, Called):
            look = type(self.look).__name__
        steps = "" if self.num_steps is None else f", num_steps={self.num_steps}"
        return f"Sieve({look}, {self.method!r}{steps}): {plural(self._step, 'batch')} so far"

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
            MisalignedError: If the method needs the model's losses of the previous batch, and none came back.

        >>> import torch, infobatch
        >>> sieve = infobatch.Sieve(lambda batch: batch["x"], infobatch.sieve.hardest(keep=0.5))
        >>> sieve({"x": torch.tensor([0.1, 2.0, 0.3, 1.0]), "name": ["a", "b", "c", "d"]})
        ({'x': tensor([2., 1.]), 'name': ['b', 'd']}, tensor([1., 1.]))
        """
        if not batch:
            raise InputError(message("a batch", "no argument", "Call sieve(x, y) or sieve(batch)."))
        self._check_answered()
        self._ahead = None
        are_parts = len(batch) > 1
        whole = batch if are_parts else batch[0]
        return self._deliver(whole, self._examine(whole, are_parts=are_parts), are_parts=are_parts)

    def ahead(self, loader: Iterable[Any], move: Callable[[Any], Any] | None = None) -> Iterator[tuple[Any, ...]]:
        """Iterate over a loader, and look one batch ahead: on a GPU the look runs beside the training step.

        Use it in place of calling the sieve, with looks that do not read the model, such as ``Proxy``.

        Args:
            loader: Any iterable of batches. An ``infobatch.DataLoader`` still knows whose losses come back.
            move: Moves a batch to the device; None leaves batches where they are.

        Yields:
            What the sieve returns for each batch: ``x, y, weight`` for batches (x, y), else ``batch, weight``.

        Raises:
            InputError: If the look reads the model that trains, as ``Own`` does; from ``reduce`` if a function does.

        >>> import torch, infobatch
        >>> loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(8, 1)), batch_size=4)
        >>> sieve = infobatch.Sieve(lambda batch: batch[0].sum(1), infobatch.sieve.hardest(keep=0.5))
        >>> [tuple(x.shape) for x, weight in sieve.ahead(loader)]
        [(2, 1), (2, 1)]
        """
        return look_ahead(self, loader, move)

    @not_compiled
    def reduce(self, losses: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the scalar to call ``backward`` on: sum(weight * loss) / rows of the whole batch.

        So a step is as large as one on the whole batch whose other rows have no gradient, and nothing grows. With
        weights 1/chance its expectation is the mean loss of the whole batch.

        It may be called again for the same batch, as by optimizers that evaluate each batch more than once.

        Args:
            losses: The losses of the rows passed on, shape [rows], from the model that trains.
            weight: The weights that came with these rows, where several batches wait for their losses.

        Raises:
            InputError: If the losses have the wrong shape or type, or the proxy is the model that trains.
            MisalignedError: If no batch waits for its losses, or several do and no weights say which.

        >>> import torch, infobatch
        >>> sieve = infobatch.Sieve(lambda losses: losses, infobatch.sieve.hardest(keep=0.5))
        >>> kept, weight = sieve(torch.tensor([0.1, 2.0, 0.3, 1.0]))
        >>> sieve.reduce(kept)  # (2 + 1) / 4
        tensor(0.7500)
        """
        passed = self._take(losses, weight)
        return passed.weigh(losses).sum() / passed.count()

    @not_compiled
    def expand(self, losses: Tensor, weight: Tensor | None = None, *, score: Tensor | None = None) -> PerSample:
        """Return losses and scores of the whole batch, for ``train_data.update(loss, score=score)``.

        A row that was left out has loss 0, so that it has no gradient, and an unknown score, so that it keeps the one
        it had. With ``Own`` as the look, and without ``score``, its score is the loss that the look found.

        Args:
            losses, weight: As for ``reduce``.
            score: What to record instead of the losses, one per row passed on, as adapters return it.

        Raises:
            InputError: If the losses or scores have the wrong shape or type, the proxy is the model that trains, or the
                method chooses tokens instead of rows.
            MisalignedError: If no batch waits for its losses, or several do and no weights say which.

        >>> import torch, infobatch
        >>> data = torch.utils.data.TensorDataset(torch.rand(8, 1))
        >>> train_data = infobatch.InfoBatch(data, num_epochs=8)
        >>> sieve = infobatch.Sieve(lambda batch: batch[0].sum(1), infobatch.sieve.hardest(keep=0.5))
        >>> for (x,) in infobatch.DataLoader(train_data, batch_size=4):
        ...     (x,), weight = sieve((x,))
        ...     loss, score = sieve.expand(x.square().sum(1))
        ...     loss = train_data.update(loss, score=score)
        """
        passed = self._take(losses, weight)
        if passed.valid is not None:
            remedy = "Use sieve.reduce; scores belong to samples."
            raise InputError(message("a method that chooses rows", repr(self.method), remedy))
        if score is not None:
            check_score(score, losses)
        if score is not None or self.look is None or passed.losses is None:
            return passed.expand(losses, score, known=None)
        return passed.expand(losses, known=self.look.model_losses(passed.losses))

    def skip(self) -> None:
        """Leave out what was passed on and has no losses yet: call it before a ``continue``.

        >>> import torch, infobatch
        >>> sieve = infobatch.Sieve(lambda losses: losses, infobatch.sieve.hardest(keep=0.5))
        >>> for losses in torch.rand(4, 32):
        ...     kept, weight = sieve(losses)
        ...     if not kept.isfinite().all():
        ...         sieve.skip()
        ...         continue
        ...     loss = sieve.reduce(kept)
        """
        self._waiting.clear()

    def summary(self, model_flops: float | None = None) -> SieveSummary:
        """Return what the sieve has done so far; printed, it is one line.

        Args:
            model_flops: FLOPs of the model's forward pass per row, from ``infobatch.sieve.count_flops(model, x)``;
                unknown to the sieve, except with ``Own`` as its look.

        >>> import torch, infobatch
        >>> sieve = infobatch.Sieve(lambda losses: losses, infobatch.sieve.hardest(keep=0.5))
        >>> for losses in torch.rand(4, 32):
        ...     kept, weight = sieve(losses)
        >>> print(sieve.summary())
        kept 64 of 128 rows (50.0%) in 4 batches
        """
        self._join_stream()
        looking, held = (0.0, 0) if self.look is None else (self.look.spent(), self.look.held())
        if model_flops is None and self.look is not None:
            model_flops = self.look.model_flops()
        full = step_of(model_flops) * self._rows if model_flops else None
        return SieveSummary(self._step, self._rows, self._kept, int(self._not_finite), looking, full, held)

    # ---- saving and resuming -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return everything that changes in the course of a run, the proxy and its optimizer included.

        With several ranks each has its own proxy: save the state of each.

        >>> import torch, infobatch
        >>> sieve = infobatch.Sieve(lambda losses: losses, infobatch.sieve.hardest(keep=0.5))
        >>> kept, weight = sieve(torch.rand(32))
        >>> sieve.state_dict()["step"]
        1
        """
        self._join_stream()
        return {
            "format": FORMAT,
            "method": repr(self.method),
            "seed": self.seed,
            "step": self._step,
            "rows": self._rows,
            "kept": self._kept,
            "not_finite": int(self._not_finite),
            "amount": self._amount.state_dict(),
            "look": {} if self.look is None else self.look.state_dict(),
            "ahead": save_passed(self._resumed if self._ahead is None else (self._ahead[0], mark_of(self._ahead[1]))),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state_dict`` was called; the sieve must have been made with the same arguments.

        Args:
            state: What ``state_dict`` returned.

        Raises:
            StateError: If the state is damaged or of another sieve. Nothing is loaded then.

        >>> import infobatch
        >>> sieve = infobatch.Sieve(lambda losses: losses, infobatch.sieve.hardest(keep=0.5))
        >>> sieve.load_state_dict(sieve.state_dict())
        """
        check_sieve_state(state, repr(self.method), self.seed)
        ahead = load_passed(state["ahead"])
        amount = self.method.make_amount()
        amount.load_state_dict(state["amount"])
        if self.look is None:
            check_fields(state["look"], set(), "the state of a look", REBUILD)
        else:
            self.look.load_state_dict(state["look"])
        self._amount, self._resumed, self._ahead = amount, ahead, None
        self._waiting.clear()
        self._step, self._rows, self._kept = (state[name] for name in ("step", "rows", "kept"))
        self._not_finite = state["not_finite"]

    # ---- inside ------------------------------------------------------------------------------------------

    def _examine(self, batch: Any, *, are_parts: bool) -> Passed:
        """Look at a batch and decide what to pass on. After an error, nothing but a proxy has changed."""
        resumed, self._resumed = self._resumed, None
        if resumed is not None and mark_of(batch) == resumed[1]:
            return resumed[0].to(device_of(batch))
        amount = copy.copy(self._amount)
        try:
            passed = self._decide_on(batch, are_parts=are_parts)
        except BaseException:
            self._amount = amount
            raise
        self._step += 1
        return passed

    def _decide_on(self, batch: Any, *, are_parts: bool) -> Passed:
        device = device_of(batch)
        is_capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if is_capturing and not self._amount.is_constant:
            remedy = "Choose one with a fixed share, such as hardest(keep=0.5), or call the sieve outside of the graph."
            raise InputError(
                message("inside a CUDA graph a method that treats all batches alike", repr(self.method), remedy)
            )
        progress = None if self.num_steps is None else min(self._step / self.num_steps, 1.0)
        decision = self._amount.decide(self._step, progress)
        if decision.is_measured and self.look is not None and self.look._is_sharded():
            remedy = "Choose a fixed share, such as hardest(keep=0.5), or look with a Proxy, which each rank has whole."
            got = f"{self.method!r}, which measures on each rank: one that does not look would leave the others waiting"
            raise InputError(message("for a look by a model in FSDP a method by which all ranks look", got, remedy))
        is_needed = decision.share < 1 or decision.is_measured
        losses = self._visit(batch, device, progress, is_needed=is_needed, is_capturing=is_capturing)
        if not is_needed or losses is None:
            size = self._count(batch, are_parts)
            losses = torch.zeros(size, device=device) if is_needed else None  # the method needs no look
        else:
            size = check_losses(losses, by_token=self.method.valid_tokens is not None)
        if not size:
            raise InputError(message("a batch of at least one row", describe(batch), "Leave out an empty batch."))
        if losses is not None and self._select is None:
            check_rows(batch, size, are_parts=are_parts)
        return self._decide(batch, size, losses, decision, device, is_capturing=is_capturing)

    def _count(self, batch: Any, are_parts: bool) -> int:
        """Return the number of rows of a batch that was not looked at."""
        if self._select is None:
            return count_rows(batch, are_parts=are_parts)
        return count_rows(next((one for one in tensors_of(batch) if one.ndim), None))

    def _visit(
        self, batch: Any, device: torch.device, progress: float | None, *, is_needed: bool, is_capturing: bool
    ) -> Tensor | None:
        """Let the look take a batch. What it draws follows from the seed and the step, and disturbs nothing."""
        if self.look is None:
            return None
        seed = generator_for(self.seed ^ LOOKING, self._step, torch.device("cpu")).initial_seed()
        with torch.no_grad(), uncached_autocast(), kept_modes(self.look._modules()), kept_random_state(device, seed):
            if is_capturing:  # a graph would repeat a step of the proxy at every replay
                losses: Any = self.look.look(batch) if is_needed else None
            else:
                losses = self.look.visit(batch, self._step, progress, is_needed=is_needed)
        if is_needed and losses is None:
            check_losses(losses, by_token=False)
        return losses.detach() if isinstance(losses, Tensor) else losses

    def _decide(
        self, batch: Any, size: int, losses: Tensor | None, decision: Decision, device: torch.device, is_capturing: bool
    ) -> Passed:
        """Choose the rows, or the tokens, by the losses of the look."""
        valid = None if self.method.valid_tokens is None else check_valid(self.method.valid_tokens(batch), losses)
        if losses is None:
            weights = torch.ones(size, dtype=torch.float32, device=device) if valid is None else valid.float()
            return Passed(size, None, weights, valid=valid)
        finite = losses.isfinite()
        ranked = torch.where(finite, losses, -torch.inf)
        not_finite = finite.numel() - finite.sum()
        if valid is not None:
            passed = Passed(size, None, choose_tokens(ranked, valid, decision.share), losses, valid=valid)
        else:
            passed = self._choose(batch, ranked, losses, decision, is_capturing)
        if not is_capturing:  # in a graph nothing is computed before it is replayed
            self._not_finite = self._not_finite + not_finite
        return passed

    def _choose(self, batch: Any, ranked: Tensor, losses: Tensor, decision: Decision, is_capturing: bool) -> Passed:
        size, is_measured = len(losses), decision.is_measured
        own = None if self.look is None else self.look.model_losses(losses)
        if is_measured and own is not None:
            self._amount.observe(ranked.argsort(descending=True), own)
            is_measured = False
        k = count_kept(decision.share, size)
        if k == size:
            return Passed(size, None, (ranked > -torch.inf).float(), losses, is_measured)
        generator = None if is_capturing else generator_for(self.seed, self._step, losses.device)
        choice = self._check_choice(self.method.rule(Seen(ranked, k, generator, batch)), k)
        weights = torch.where(ranked[choice.rows] > -torch.inf, choice.weights, 0.0)
        return Passed(size, choice.rows, weights, losses)

    def _deliver(self, batch: Any, passed: Passed, *, are_parts: bool) -> tuple[Any, ...]:
        """Return the rows passed on, and remember them for the losses that come back."""
        if passed.rows is not None:
            batch = self._select_rows(batch, passed.rows, passed.size, are_parts)
        self._waiting.add(passed)
        self._rows += passed.size
        self._kept += passed.size if passed.rows is None else len(passed.rows)
        return (*batch, passed.weights) if are_parts else (batch, passed.weights)

    def _select_rows(self, batch: Any, rows: Tensor, size: int, are_parts: bool) -> Any:
        if self._select is None:
            if are_parts:
                return [select_column(part, rows, size) for part in batch]
            return select_rows(batch, rows, size)
        selected = self._select(batch, rows)
        if are_parts and not (isinstance(selected, (list, tuple)) and len(selected) == len(batch)):
            expected = f"from select(batch, rows) the {len(batch)} parts of the batch as a tuple"
            raise InputError(message(expected, describe(selected), "Return the structure that it was given."))
        return selected

    def _check_answered(self) -> None:
        """Check that losses come back, if the method follows from them. A batch may be skipped now and then."""
        latest = self._waiting.latest
        if latest is not None and latest.is_measured and not self._has_losses:
            remedy = (
                "Pass the losses of every batch to sieve.reduce or sieve.expand before the next one, or choose a "
                "method with a fixed share, such as infobatch.sieve.hardest(keep=0.5)."
            )
            expected = "the model's losses of the previous batch, which decide how many rows to keep"
            raise MisalignedError(message(expected, "none", remedy))

    def _join_stream(self) -> None:
        """Let the current stream wait for what the sieve does on its own."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)

    def _take(self, losses: Tensor, weight: Tensor | None) -> Passed:
        """Return what the losses belong to, and let a measured batch be observed, once."""
        found = passed = self._waiting.find(weight)
        if not isinstance(losses, Tensor) or losses.shape != passed.weights.shape or not losses.is_floating_point():
            expected = f"losses of shape {list(passed.weights.shape)}, one for each weight of the batch"
            remedy = ONE_LOSS
            if isinstance(losses, Tensor) and losses.ndim > passed.weights.ndim:
                remedy = "Reduce every dimension but the first: loss, score = infobatch.per_sample(losses, mask)."
            if isinstance(losses, PerSample):
                remedy = "Pass its loss: loss, score = infobatch.per_sample(losses, mask), then sieve.reduce(loss)."
            raise InputError(message(expected, describe(losses), remedy))
        if passed.weights.device != losses.device:
            passed = passed.to(losses.device)
        self._has_losses = True
        if not self._is_look_checked and self.look is not None and losses.grad_fn is not None:
            self.look._check_model(losses, is_ahead=self._ahead is not None)  # once: it walks through the graph
            self._is_look_checked = True
        if passed.is_measured:
            assert passed.losses is not None
            ranked = torch.where(passed.losses.isfinite(), passed.losses, -torch.inf)
            self._amount.observe(ranked.argsort(descending=True), losses.detach())
            passed = passed.observed()
        self._waiting.answer(found, found.observed())
        return passed

    def _check_choice(self, choice: Any, k: int) -> Choice:
        rows, weights = choice if isinstance(choice, tuple) and len(choice) == 2 else (choice, None)
        if (
            isinstance(rows, Tensor)
            and isinstance(weights, Tensor)
            and rows.shape == weights.shape == (k,)
            and rows.dtype == torch.int64
        ):
            return Choice(rows, weights)
        expected = f"a rule that returns exactly {k} rows as int64 and their {k} weights"
        got = f"{describe(rows)} and {describe(weights)}"
        raise InputError(message(expected, got, "Return Choice(rows, weights); see infobatch.sieve.rules."))
