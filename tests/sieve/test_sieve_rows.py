"""Rows: the same structure with fewer rows, whatever the batch is made of, and a refusal where that cannot be told."""

from __future__ import annotations

import collections
import copy
import dataclasses
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence
from transformers import BatchEncoding, PreTrainedTokenizerFast
from transformers.modeling_outputs import SequenceClassifierOutput

import infobatch
from infobatch import InputError
from infobatch.sieve import random_rows, select_rows
from infobatch.sieve.rows import count_rows, mark_of

SIZE, ROWS = 5, torch.tensor([0, 2, 3])


class Pair(NamedTuple):
    x: Tensor
    name: list[str]


@dataclasses.dataclass(frozen=True)
class Sample:
    x: Tensor
    scale: float
    nothing: None = None


def column(size: int = SIZE) -> Tensor:
    return torch.arange(size * 2).view(size, 2)


def texts(size: int = SIZE) -> list[str]:
    return [f"text {row}" for row in range(size)]


def ragged(size: int = SIZE) -> list[Tensor]:
    return [torch.full((row + 1,), row) for row in range(size)]


def plain(value: Any) -> Any:
    """A structure of lists and dicts that can be compared."""
    if isinstance(value, Tensor):
        return ["sparse", *value.to_dense().tolist()] if value.is_sparse else value.tolist()
    if isinstance(value, np.ndarray):
        return ["array", str(value.dtype), value.tolist()]
    if isinstance(value, collections.abc.Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(plain, value)]
    return plain(vars(value)) if dataclasses.is_dataclass(value) else value


X, FEW = column(), column()[ROWS]
NAMES, FEW_NAMES = texts(), [f"text {row}" for row in ROWS.tolist()]
FEW_RAGGED = [ragged()[row] for row in ROWS.tolist()]
STRUCTURES: dict[str, tuple[Any, Any]] = {
    "tensor": (X, FEW),
    "tuple": ((X, X), (FEW, FEW)),
    "list": ([X, X[:, 0]], [FEW, FEW[:, 0]]),
    "dict": ({"x": X, "y": X}, {"x": FEW, "y": FEW}),
    "nested": ({"x": (X, [X, {"y": X}]), "y": X}, {"x": (FEW, [FEW, {"y": FEW}]), "y": FEW}),
    "texts": ((X, NAMES), (FEW, FEW_NAMES)),
    "texts alone": (NAMES, FEW_NAMES),
    "a tuple of texts": ((tuple(NAMES), X), (tuple(FEW_NAMES), FEW)),
    "columns of texts": ({"tags": [NAMES, NAMES]}, {"tags": [FEW_NAMES, FEW_NAMES]}),
    "named tuple": (Pair(X, NAMES), Pair(FEW, FEW_NAMES)),
    "data class": (Sample(X, 0.5), Sample(FEW, 0.5)),
    "numbers and settings": (
        {"x": X, "scale": 2.0, "kind": "train", "of": None, "zero": torch.tensor(3), "dtype": torch.float32},
        {"x": FEW, "scale": 2.0, "kind": "train", "of": None, "zero": torch.tensor(3), "dtype": torch.float32},
    ),
    "a size": ({"x": X, "size": torch.Size([1, 2, 3, 4, 5])}, {"x": FEW, "size": torch.Size([1, 2, 3, 4, 5])}),
    "images of different shapes": ((ragged(), X), (FEW_RAGGED, FEW)),
    "images of different shapes alone": (ragged(), FEW_RAGGED),
    "images of one shape": (([torch.ones(3, 2)] * SIZE, X), ([torch.ones(3, 2)] * 3, FEW)),
    "targets of detection": (
        ([torch.ones(3, 2)] * SIZE, [{"boxes": box} for box in ragged()]),
        ([torch.ones(3, 2)] * 3, [{"boxes": box} for box in FEW_RAGGED]),
    ),
    "objects": ((X, [{1, row} for row in range(SIZE)]), (FEW, [{1, 0}, {1, 2}, {1, 3}])),
    "array": ((X, X.numpy()), (FEW, FEW.numpy())),
    "array alone": (X.numpy(), FEW.numpy()),
    "array of texts": ((X, np.array(NAMES)), (FEW, np.array(FEW_NAMES))),
    "WebDataset": (
        [NAMES, X, np.arange(SIZE), [{"url": name, "at": np.int64(3)} for name in NAMES]],
        [FEW_NAMES, FEW, np.array(ROWS.tolist()), [{"url": name, "at": np.int64(3)} for name in FEW_NAMES]],
    ),
    "numbers of NumPy": (
        {"x": X, "scale": np.float32(2), "zero": np.array(3.0)},
        {"x": FEW, "scale": np.float32(2), "zero": np.array(3.0)},
    ),
    "sparse": ((X.to_sparse(), X), (FEW.to_sparse(), FEW)),
    "ordered dict": (collections.OrderedDict(x=X), collections.OrderedDict(x=FEW)),
    "default dict": (collections.defaultdict(list, x=X), collections.defaultdict(list, x=FEW)),
    "BatchEncoding": (BatchEncoding({"ids": X, "mask": X}), BatchEncoding({"ids": FEW, "mask": FEW})),
    "ModelOutput": (
        SequenceClassifierOutput(logits=X, hidden_states=(X, X)),  # type: ignore[arg-type]
        SequenceClassifierOutput(logits=FEW, hidden_states=(FEW, FEW)),  # type: ignore[arg-type]
    ),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_same_structure_with_fewer_rows(name: str) -> None:
    batch, expected = STRUCTURES[name]
    before = plain(batch)
    selected = select_rows(batch, ROWS, SIZE)
    assert type(selected) is type(batch)
    assert plain(selected) == plain(expected)
    assert plain(batch) == before  # what was given stays
    assert count_rows(batch) == SIZE


def test_a_mapping_keeps_what_else_it_holds() -> None:
    batch = SequenceClassifierOutput(logits=X)  # type: ignore[arg-type]
    selected = select_rows(batch, ROWS, SIZE)
    assert selected.logits is selected["logits"]
    assert torch.equal(selected.logits, FEW)
    assert select_rows(STRUCTURES["default dict"][0], ROWS, SIZE)["missing"] == []


def test_a_batch_encoding_reads_the_tokens_of_its_rows() -> None:
    """They are in a list beside its tensors, one entry per row."""
    model = tokenizers.models.WordLevel({"[PAD]": 0, "a": 1, "b": 2, "c": 3}, unk_token="[PAD]")
    words = tokenizers.Tokenizer(model)
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")
    texts = ["a a", "b", "c c c", "b a"]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    sieve = infobatch.Sieve(lambda batch: torch.tensor([0.0, 5.0, 1.0, 7.0]), infobatch.sieve.hardest(0.5))
    selected, _ = sieve(batch)
    expected = tokenizer([texts[1], texts[3]], return_tensors="pt", padding="max_length", max_length=3)
    assert torch.equal(selected["input_ids"], expected["input_ids"])
    for row in range(2):
        assert selected.tokens(row) == expected.tokens(row)
        assert selected.word_ids(row) == expected.word_ids(row)
    assert [one.tokens for one in selected.encodings[:]] == [expected.tokens(0), expected.tokens(1)]
    assert batch.tokens(0) == ["a", "a", "[PAD]"]
    again, _ = sieve(batch | {})
    assert again["input_ids"].shape == (2, 3)


LAYOUTS: dict[str, tuple[Tensor, torch.memory_format | None]] = {
    "channels_last": (torch.rand(SIZE, 3, 4, 2).to(memory_format=torch.channels_last), torch.channels_last),
    "channels_last_3d": (
        torch.rand(SIZE, 3, 4, 2, 2).to(memory_format=torch.channels_last_3d),
        torch.channels_last_3d,
    ),
    "contiguous": (torch.rand(SIZE, 3, 4, 2), torch.contiguous_format),
    "transposed": (torch.rand(4, SIZE).T, None),
    "every other column": (torch.rand(SIZE, 6)[:, ::2], None),
    "one row for all": (torch.rand(1, 3, 4, 2).expand(SIZE, 3, 4, 2), None),
    "channels of one pixel": (torch.rand(SIZE, 3, 1, 1).to(memory_format=torch.channels_last), torch.channels_last),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_tensors_keep_their_values_and_memory_format(name: str) -> None:
    """In another format, each convolution of the model would convert its input, and may choose a slower kernel."""
    tensor, layout = LAYOUTS[name]
    selected = select_rows({"x": tensor}, ROWS, SIZE)["x"]
    assert selected.tolist() == [tensor[row].tolist() for row in ROWS.tolist()]
    assert layout is None or selected.is_contiguous(memory_format=layout)
    selected.zero_()  # of its own memory
    assert tensor.any()


BATCHES = st.recursive(
    st.sampled_from(["tensor", "texts", "number", "ragged"]),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1),
        st.lists(inner, min_size=1, max_size=3).map(tuple),
    ),
    max_leaves=8,
)


@given(BATCHES, st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=SIZE, unique=True).map(sorted))
def test_any_nesting_loses_the_same_rows_everywhere(form: Any, rows: list[int]) -> None:
    def build(form: Any, rows: list[int]) -> Any:
        if isinstance(form, dict):
            return {key: build(inner, rows) for key, inner in form.items()}
        if isinstance(form, tuple):
            return tuple(build(inner, rows) for inner in form)
        made = {"tensor": column()[rows], "texts": [texts()[row] for row in rows], "number": 7}
        return made.get(form, [ragged()[row] for row in rows])

    batch = {"first": column(), "rest": build(form, list(range(SIZE)))}
    selected = select_rows(batch, torch.tensor(rows), SIZE)
    assert plain(selected["rest"]) == plain(build(form, rows))
    assert count_rows(batch) == SIZE


# ---- what cannot be told ---------------------------------------------------------------------------------------

AMBIGUOUS: dict[str, Any] = {
    "three images of three channels": ([torch.ones(3, 4, 4)] * 3, torch.ones(3)),
    "three targets of three boxes": (torch.ones(3), [{"boxes": torch.ones(3, 4)}] * 3),
    "three views of three images": {"views": (torch.ones(3, 2), torch.ones(3, 2), torch.ones(3, 2))},
    "three columns of three texts": {"tags": [["a", "b", "c"]] * 3},
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_a_list_that_may_be_rows_or_columns_is_refused(name: str) -> None:
    """Three images of three channels would lose channels if they were taken for columns."""
    with pytest.raises(InputError, match="select="):
        select_rows(AMBIGUOUS[name], torch.tensor([0, 2]), 3)


def test_the_outermost_list_is_columns_if_it_can_be() -> None:
    x, y, z = (torch.arange(3) + 10 * at for at in range(3))
    assert plain(select_rows([x, y, z], torch.tensor([0, 2]), 3)) == ["list", [0, 2], [10, 12], [20, 22]]


UNKNOWN: dict[str, Any] = {
    "another number of rows": (column(5), column(4)),
    "another number deep inside": {"x": column(5), "more": [{"y": column(6)}]},
    "an object without rows": (column(5), object()),
    "a packed sequence": pack_sequence([torch.ones(3), torch.ones(2)]),
    "an array of another number of rows": (column(5), np.zeros((4, 2))),
    "a nested tensor": torch.nested.nested_tensor([torch.rand(at + 1) for at in range(5)], layout=torch.jagged),
    "a dict that cannot be changed": types.MappingProxyType({"x": column(5)}),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_parts_that_disagree_or_have_no_rows_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="select="):
        select_rows(UNKNOWN[name], ROWS, 5)


@pytest.mark.parametrize(
    "batch",
    [
        object(),
        {},
        3.0,
        None,
        {"x": torch.tensor(1.0)},
        {"x": column(5), "y": column(4)},
        {"views": (column(), column())},
    ],
)
def test_rows_that_cannot_be_counted_are_refused(batch: Any) -> None:
    with pytest.raises(InputError, match="select="):
        count_rows(batch)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((torch.ones(8, 3), [torch.ones(8, 2), torch.ones(8, 2)]), 8),
        (([torch.ones(3, 2)] * 8, torch.ones(8)), 8),
        (([torch.ones(3, 2)] * 8, [{"boxes": torch.ones(2, 4)}] * 8), 8),
        (([torch.ones(3, 2)] * 8, [f"{row}" for row in range(8)]), None),
        (([torch.ones(3, 2)] * 8,), None),
        ((["a", "b"], ["c", "d"]), 2),
        ((torch.tensor(1.0), 2), None),
        ((column(5), column(4)), None),
    ],
)
def test_parts_are_counted_by_what_all_agree_on(parts: Any, expected: int | None) -> None:
    if expected is None:  # for example eight images of three channels, or eight columns of three rows
        with pytest.raises(InputError, match="labels"):
            count_rows(parts, are_parts=True)
    else:
        assert count_rows(parts, are_parts=True) == expected


# ---- recognized after a restart --------------------------------------------------------------------------------


def test_batches_are_told_apart_by_their_tensors_and_arrays_or_else_by_their_texts() -> None:
    objects = np.array([{1}, "a"], dtype=object)
    batches = [X, X + 1, X.numpy() + 2, (X, X.numpy()), NAMES, NAMES[:3], {"x": [1, 2]}, {"x": [1, 3]}, objects]
    marks = [mark_of(batch) for batch in batches]
    assert len(set(marks)) == len(marks)
    assert marks == [mark_of(copy.deepcopy(batch)) for batch in batches]
    assert mark_of((X, NAMES)) == mark_of((X, NAMES[::-1])) == mark_of(X)  # such as paths, which may change


# ---- through a sieve -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_sieve_returns_the_structure_and_the_weights(name: str) -> None:
    batch, _ = STRUCTURES[name]
    sieve = infobatch.Sieve(lambda given: torch.arange(SIZE).float(), infobatch.sieve.hardest(0.6))
    selected, weight = sieve(batch)
    assert plain(selected) == plain(select_rows(batch, torch.tensor([2, 3, 4]), SIZE))
    assert weight.tolist() == [1.0] * 3


def test_parts_are_columns_also_where_there_are_as_many_as_rows() -> None:
    """Three parts of three rows, without a tensor: read as one object, they could be three rows."""
    sieve = infobatch.Sieve(lambda given: torch.tensor([0.0, 2.0, 1.0]), infobatch.sieve.hardest(0.67))
    one, other, third, weight = sieve(["a", "b", "c"], ("d", "e", "f"), ["g", "h", "i"])
    assert (one, other, third) == (["b", "c"], ("e", "f"), ["h", "i"])
    assert weight.tolist() == [1.0, 1.0]


def test_select_takes_the_place_of_our_reading() -> None:
    class Graph:
        def __init__(self, x: Tensor) -> None:
            self.x = x

    def keep(batch: Graph, rows: Tensor) -> Graph:
        return Graph(batch.x[rows])

    sieve = infobatch.Sieve(lambda batch: batch.x.float(), infobatch.sieve.hardest(0.5), select=keep)
    graph, _ = sieve(Graph(torch.arange(6)))
    assert graph.x.tolist() == [3, 4, 5]


def test_select_of_parts_must_return_as_many_parts() -> None:
    make: Callable[[Any], infobatch.Sieve] = lambda select: infobatch.Sieve(None, random_rows(0.5), select=select)  # noqa: E731
    x, y = torch.arange(6), torch.arange(6) * 2
    xs, ys, _ = make(lambda batch, rows: tuple(part[rows] for part in batch))(x, y)
    assert torch.equal(xs * 2, ys)
    for wrong in (lambda batch, rows: batch[0][rows], lambda batch, rows: {"x": x}):
        with pytest.raises(InputError, match="parts"):
            make(wrong)(x, y)
