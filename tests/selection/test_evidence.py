"""Evidence that does not fit together is refused, and says what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import infobatch
from infobatch.errors import InputError, StateError
from infobatch.selection import Evidence, contextual_diversity, evidence, k_center

N, K, D = 8, 3, 5


def facts() -> dict[str, Any]:
    lot = torch.Generator().manual_seed(0)
    features, head = torch.randn(N, D, generator=lot), torch.randn(K, D, generator=lot)
    return {
        "labels": torch.arange(N) % K,
        "features": features,
        "logits": features @ head.T,
        "head": head,
        "correct": torch.rand(4, N, generator=lot) > 0.5,
        "aum": torch.randn(N, generator=lot),
        "error_norms": torch.rand(2, N, generator=lot),
        "grad_norms": torch.rand(3, N, generator=lot),
    }


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"size": 0}, "size as an? "),
        ({"size": True}, "size as an? "),
        ({"size": N + 1}, "N = 9 in labels"),
        ({"features": torch.full((N, D), float("nan"))}, "finite features; got only NaN"),
        ({"logits": torch.eye(N, K).log()}, "finite logits; got NaN or infinity in 21 of 24 places"),
        ({"features": torch.ones(N, D).half()}, r"features.float\(\)"),
        ({"features": torch.ones(N, D).long()}, "float32 or float64"),
        ({"features": torch.ones(N)}, r"shape \[N, d\]"),
        ({"features": torch.ones(N, 0)}, "may be empty"),
        ({"features": torch.ones(N, D + 1)}, "in head, as in features"),
        ({"features": [[1.0]]}, "features as a tensor"),
        ({"features": torch.ones(N, D, device="meta")}, "features as a tensor"),
        ({"labels": torch.zeros(N)}, "labels as int64"),
        ({"labels": torch.arange(N) - 1}, "negative"),
        ({"labels": torch.arange(N)}, "labels below 3"),
        ({"labels": torch.zeros(N - 1, dtype=torch.int64)}, "N = 8 in labels, as in size"),
        ({"correct": torch.ones(2, N)}, "correct as bool"),
        ({"correct": torch.ones(N, 2, dtype=torch.bool)}, "N = 8 in correct"),
        ({"head": torch.ones(K + 1, D)}, "K = 3 in head, as in logits"),
        ({"validation": {}}, "validation as Evidence"),
        ({"validation": Evidence(2, features=torch.ones(2, D + 1))}, "5 columns in the features of validation"),
    ],
)
def test_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Evidence(**({"size": N} | facts() | wrong))


def test_one_bad_number_is_found_in_any_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "BLOCK", 2 * D)
    features = torch.ones(N, D)
    Evidence(N, features=features)
    features[6, 3] = float("inf")
    with pytest.raises(InputError, match="in 1 of 40 places"):
        Evidence(N, features=features)


def test_need_names_what_is_missing_and_where_it_comes_from() -> None:
    known = Evidence(N, labels=facts()["labels"])
    with pytest.raises(InputError, match=r"without features, correct. selection.gather"):
        known.need("labels", "features", "correct")
    assert known.need("labels")[0] is known.labels


@pytest.mark.parametrize("bias", [True, False])
def test_last_layer_is_the_gradient(bias: bool) -> None:
    """Against autograd: the gradient of sample i is e_i f_i^T, the bias in the last column."""
    known = Evidence(N, **facts(), bias=bias)
    features, labels = known.need("features", "labels")
    layer = torch.nn.Linear(D, K, bias=bias)
    with torch.no_grad():
        logits = layer(features)
    e, f = Evidence(N, labels=labels, features=features, logits=logits, bias=bias).last_layer()
    for i in range(N):
        layer.zero_grad()
        F.cross_entropy(layer(features[i : i + 1]), labels[i : i + 1]).backward()
        assert layer.weight.grad is not None
        parts = [layer.weight.grad, *([layer.bias.grad[:, None]] if bias else [])]
        torch.testing.assert_close(torch.outer(e[i], f[i]), torch.cat(parts, 1))


def test_saves_and_loads(tmp_path: Path) -> None:
    known = Evidence(N, **facts(), bias=False, validation=Evidence(2, labels=torch.tensor([1, 0])))
    known.save(tmp_path / "evidence.pt")
    again = Evidence.load(tmp_path / "evidence.pt")
    assert repr(again) == repr(known)
    assert again.bias is False
    assert all(table.equal(known.tables()[name]) for name, table in again.tables().items())
    assert again.validation is not None
    assert again.validation.need("labels")[0].tolist() == [1, 0]
    infobatch.save({"format": 7}, tmp_path / "other.pt")
    with pytest.raises(StateError, match="evidence written by save"):
        Evidence.load(tmp_path / "other.pt")


def test_moves_whole() -> None:
    known = Evidence(N, **facts(), validation=Evidence(N, **facts()))
    moved = known.to("cpu")
    assert moved.device == torch.device("cpu")
    assert repr(moved) == repr(known)
    assert "validation" in repr(known)
    assert repr(Evidence(3)) == "Evidence(3 samples: nothing)"


def test_evidence_is_not_differentiated() -> None:
    x = torch.randn(6, 3, requires_grad=True)
    known = Evidence(6, features=x, logits=x @ torch.randn(3, 4))
    assert not any(table.requires_grad for table in known.tables().values())
    assert len(k_center(known, 0.5)) == len(contextual_diversity(known, 0.5)) == 3


@pytest.mark.parametrize(
    "change",
    [{"size": "3"}, {"validation": 5}, {"validation": {}}, {"more": 1}, {"features": torch.zeros(2, 2)}],
    ids=str,
)
def test_damaged_files_are_named(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "evidence.pt"
    Evidence(3, features=torch.rand(3, 2)).save(path)
    whole = infobatch.load(path)
    for state in (whole | change, {"format": 1} | change):
        infobatch.save(state, path)
        with pytest.raises(StateError, match="evidence written by save"):
            Evidence.load(path)
