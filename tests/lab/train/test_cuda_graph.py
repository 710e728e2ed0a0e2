"""A step as a CUDA graph: when there is one, and that it changes nothing; cuDNN's tuning beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from small_task import QUICK, facts, made

from infobatch.lab.train import cuda_graph, loop
from infobatch.lab.train.optimizers import make_optimizer
from infobatch.lab.train.settings import Settings
from infobatch.plan import Plan


def test_a_graph_is_captured_from_a_whole_batch_and_from_no_more_than_one() -> None:
    """The warm-up, on the CPU: on a GPU, indices past the end would stop the device."""

    class Warm(cuda_graph.CapturedStep):
        def _capture(self) -> Any:
            self.warm_up()

    cuda = torch.device("cuda")
    for batch in (16, 76, 150, 151):
        settings = Settings.of({**QUICK, "batch_size": batch})
        assert cuda_graph.can_capture(made(), settings, cuda) == (batch <= 150)
        if batch <= 150:
            lab = loop.Training(settings, made(pad=1, flip=True))
            lab.optimizer = make_optimizer(lab.model, settings, captured=True)
            seen: list[Any] = []
            lab.step = seen.append  # type: ignore[method-assign]
            Warm(lab)
            first = cast(Plan, lab.train_data.plan()).indices[:batch]
            assert [piece.indices.tolist() for piece in seen] == 3 * [first.tolist()]
    assert not cuda_graph.can_capture(made(), Settings.of({**QUICK, "feed": "loader"}), cuda)
    assert not cuda_graph.can_capture(made(), Settings.of(QUICK), torch.device("cpu"))
    mixing = made(augment=lambda inputs, targets, generator: (inputs, targets))
    assert not cuda_graph.can_capture(mixing, Settings.of(QUICK), cuda)
    assert cuda_graph.can_capture(mixing, Settings.of({**QUICK, "augment": False}), cuda)


@pytest.mark.parametrize("feed", ["resident", "loader"])
def test_cudnn_tries_out_no_size_of_a_last_batch(feed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pruned epoch ends in another one. For whole batches it is as the caller said, and so after a run."""
    seen: set[tuple[bool, bool, bool]] = set()
    step, flags = loop.Training.step, torch.backends.cudnn

    def look(self: loop.Training, batch: Any) -> None:
        seen.add((batch.count == 16, flags.benchmark, flags.enabled))
        step(self, batch)

    monkeypatch.setattr(loop.Training, "step", look)
    monkeypatch.setattr(flags, "benchmark", True)
    facts(feed=feed)
    assert seen == {(True, True, True), (False, False, True)}
    with pytest.raises(ZeroDivisionError), cuda_graph.cudnn_benchmark(False):
        _ = 1 // 0
    assert flags.benchmark


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("batch", [16, 70, 150, 151])
def test_on_a_gpu_a_run_is_the_same_with_a_graph_and_without_and_half_and_half(
    tmp_path: Path, optimizer: str, batch: int
) -> None:
    rate = 0.05 if optimizer == "sgd" else 0.001
    with_graph = Settings.of({**QUICK, "method": "full", "batch_size": batch, "optimizer": optimizer, "lr": rate})
    without = with_graph.but(graph=False)
    losses = []
    for first, second in ((with_graph, with_graph), (without, without), (with_graph, without), (without, with_graph)):
        calls, path = iter(range(5)), tmp_path / "c.pt"
        told = list(loop.run(first, task=made(), keep=path, stop=lambda calls=calls: next(calls, None) is None))
        assert told[-1]["kind"] == "pause"
        told += loop.run(second, task=made(), keep=path, resume=True)
        losses.append([fact["train_loss"] for fact in told if fact["kind"] == "epoch"])
        assert told[0]["environment"]["graph"] == (first.graph and batch <= 150)
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-2)
