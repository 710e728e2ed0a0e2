"""The doctor on real loaders: it passes correct ones, and names each fault with its remedy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from patients import N, named, not_ok

from infobatch.epoch.scores import TableSlice
from infobatch.lab.doctor import Check, Diagnosis, examine
from infobatch.lab.doctor.findings import BY_COLLATE

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning"),  # torchdata's own
]


# ---- healthy ---------------------------------------------------------------------------------------------------

HEALTHY = [
    "stock()",
    "ours()",
    "stock(num_workers=2)",
    "ours(num_workers=2, persistent_workers=True)",
    "stock(drop_last=True)",
    "stock(Augmented(), num_workers=2)",
    "stock(Dicts())",
    "ours(Boxes(), collate_fn=lists)",
    "stock(Boxes(), collate_fn=lists, batch_size=2)",
    "stock(Words(), collate_fn=padded)",
    "ours(Words(), collate_fn=padded_in_front)",
    "stock(Many())",
    "stock(Columns(), collate_fn=as_it_comes)",
    "stock(batch_size=None)",
    "ours(batch_size=None)",
    "stock(batch_size=1)",
    "stock(batch_size=100)",
    "stock(Subset(Pictures(), range(5, 55)))",
    "stock(TensorDataset(torch.randn(60, 2, dtype=torch.bfloat16)))",
    "d = pruned()\nreturn infobatch.DataLoader(d, batch_sampler=Sorted(d.sampler))",
    "d = pruned()\nreturn Torch(d, batch_sampler=BatchSampler(d.sampler, 8, False))",
    "d = pruned()\nreturn d, Torch(d.dataset, batch_size=8, sampler=d.sampler)",
    "from torchdata.stateful_dataloader import StatefulDataLoader\n"
    "d = pruned()\nreturn StatefulDataLoader(d, batch_size=8, sampler=d.sampler)",
]


@pytest.mark.parametrize("code", HEALTHY)
def test_a_healthy_loader_is_called_so(code: str, patient: Callable[..., str]) -> None:
    found = examine(patient(code))
    assert not_ok(found) == {}
    assert found.ok
    assert found.verdict == "Every loss reaches its sample."
    assert found.epochs == 2
    right, came = re.match(r"(\d+) of (\d+) reached their samples$", named(found, "losses").seen).groups()
    assert right == came
    assert int(came) > found.samples, "a full epoch and a pruned one"


METHODS = {
    "kakurenbo": "methods.kakurenbo()",  # wants confidences
    "bls": "methods.bls()",  # scores a sample by its batch
    "rcap": "methods.rcap(torch.arange(60) % 10)",  # made for so many samples
    "class_floor": "variations.class_floor(methods.infobatch(), torch.arange(60) % 10, 0.5)",
    "selection": "selection.Selection(torch.arange(30), size=60)",
}


@pytest.mark.parametrize("limit", [None, 40])
@pytest.mark.parametrize("name", METHODS)
def test_a_loader_is_healthy_whatever_its_method_needs(
    name: str, limit: int | None, patient: Callable[..., str]
) -> None:
    imports = "from infobatch import methods, selection, variations"
    data = f"infobatch.Pruned(Pictures(), {METHODS[name]}, 8)"
    found = examine(patient(f"{imports}\nreturn infobatch.DataLoader({data}, batch_size=8)"), limit=limit)
    assert not_ok(found) == {}
    assert found.verdict == "Every loss reaches its sample."


UNSIZED = """
class Unsized(Sampler):
    def __init__(self, sampler):
        self.sampler = sampler
    def __iter__(self):
        return iter(self.sampler)
    def __len__(self):
        raise NotImplementedError("nobody knows")
"""


@pytest.mark.parametrize(
    "code",
    [
        "d = pruned()\nreturn Torch(d, batch_sampler=BatchSampler(Unsized(d.sampler), 8, False))",
        "return Torch(Pictures(), batch_size=8, sampler=Unsized(range(60)))",
        "return Torch(Pictures(), batch_sampler=Unsized([[1, 2], [3, 4]]))",
    ],
)
def test_a_length_that_nobody_knows_is_not_asked_for(code: str, patient: Callable[..., str]) -> None:
    found = examine(patient(f"{UNSIZED}\n{code}"))
    assert not any("nobody knows" in check.seen for check in found.checks)
    assert found.epochs > 0


@pytest.mark.slow
def test_workers_by_spawn(patient: Callable[..., str]) -> None:
    found = examine(patient('ours(num_workers=1, persistent_workers=True, multiprocessing_context="spawn")'))
    assert not_ok(found) == {}
    assert "by spawn" in named(found, "workers").seen


def test_rows_that_cannot_be_recognised_are_followed_by_their_places(patient: Callable[..., str]) -> None:
    found = examine(patient("stock(collate_fn=scaled)"))
    assert not_ok(found) == {}
    assert "counted batch by batch" in named(found, "losses").seen


# ---- ill -------------------------------------------------------------------------------------------------------

BY_INDEX = r"update\(loss, indices\)"
PAIRS = r"(?s)infobatch\.DataLoader\(.*with_indices=True\).*update\(loss, indices\)"
OURS = r"loader = infobatch\.DataLoader\(train_data, batch_size=8\)"
ILL = {
    "shuffle=True": ("stock(sampler=None, shuffle=True)", "sampler", "shuffle=True", OURS),
    "no sampler": ("stock(sampler=None)", "sampler", "no sampler", OURS),
    "a sampler of its own": (
        "stock(sampler=WeightedRandomSampler([1.0] * 60, 60))", "sampler", "WeightedRandomSampler", OURS,
    ),
    "DistributedSampler": (
        "d = pruned()\nreturn Torch(d, batch_size=8, sampler=DistributedSampler(d, 2, 0))",
        "sampler", "DistributedSampler", OURS,
    ),
    "reads ahead": ("ReadsAhead(stock())", "losses", "batch 1 of epoch 0", PAIRS),
    "reads three ahead": ("ReadsAhead(stock(num_workers=2), by=3)", "losses", "epoch 0", PAIRS),
    "reads ahead of ours": ("ReadsAhead(ours())", "losses", "epoch 0", PAIRS),
    "reads ahead, shuffled": ("ReadsAhead(stock(sampler=None, shuffle=True))", "losses", "epoch 0", PAIRS),
    "collate drops": ("stock(collate_fn=without_first)", "batch size", "a batch of 7", "not in collate_fn"),
    "collate drops, ours": ("ours(collate_fn=without_first)", "batch size", "batch of 7", "not in collate_fn"),
    "collate doubles": ("stock(collate_fn=doubled)", "batch size", "batch of 16 rows", r"view\(-1, 8\).mean\(0\)"),
    "collate reorders": ("stock(collate_fn=backwards)", "order inside a batch", "same batch", BY_INDEX),
    "collate reorders, ours": ("ours(collate_fn=backwards)", "order inside a batch", "same batch", "__getitem__"),
    "collate sorts": (
        "stock(Words(), collate_fn=longest_first)", "order inside a batch", "same batch", BY_INDEX,
    ),
    "collate reorders what cannot be recognised": (
        "stock(collate_fn=scaled_backwards)", "order inside a batch", "change places", BY_INDEX,
    ),
    "a batch sampler around ours": (
        "d = pruned()\nreturn Torch(d, batch_sampler=Sorted(d.sampler))", "batch sampler", "Sorted around",
        r"infobatch.DataLoader\(train_data, batch_sampler=Sorted\(train_data.sampler",
    ),
    "a batch sampler on its own": (
        "Torch(pruned(), batch_sampler=OnItsOwn())", "batch sampler", "OnItsOwn draws", "batch_sampler=OnItsOwn",
    ),
    "parts of a batch": ("InParts(stock())", "losses", "indices", BY_INDEX),
    "parts of a batch of ours": ("InParts(ours())", "losses", "indices", BY_INDEX),
    "in_order=False": ("stock(num_workers=2, in_order=False)", "workers", "in_order=False", r"num_workers=2\)"),
    "the loader reads what is inside": (
        "d = pruned()\nreturn d, Torch(d.dataset, batch_size=8, shuffle=True)", "wrapping", "reads Pictures",
        OURS,
    ),
    "wrapped again": (
        "Torch(Subset(pruned(), range(50)), batch_size=8, shuffle=True)", "wrapping", "inside a Subset", "InfoBatch",
    ),
    "a data set that moves": ("stock(Moves())", "positions", "another index", "same sample"),
    "a data set that grew": (
        "d = pruned()\nd.dataset.size = 50\nreturn Torch(d, sampler=d.sampler)", "data set", "was 60", "complete",
    ),
    "__len__ too large": ("stock(Pictures(80))", "passes", "IndexError", r"dataset\[79\]"),
    "no end": ("Endless(stock())", "passes", "without an end", "__iter__"),
    "__getitems__ loses one": ("stock(Fewer())", "batch size", "returned 7 samples for 8 indices", "per index"),
}  # fmt: skip


@pytest.mark.parametrize("name", ILL)
def test_an_illness_is_named_with_its_remedy(name: str, patient: Callable[..., str]) -> None:
    code, check, seen, fix = ILL[name]
    found = examine(patient(code))
    assert not found.ok
    assert check in found.verdict
    answer = named(found, check)
    assert answer.status == "problem"
    assert re.search(seen, answer.seen), answer.seen
    assert re.search(fix, answer.fix), answer.fix
    assert answer.means


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["shuffle=True", "DistributedSampler", "reads ahead", "reads three ahead", "reads ahead, shuffled",
     "a batch sampler around ours", "in_order=False"],
)  # fmt: skip
def test_the_remedy_was_tried(name: str, patient: Callable[..., str]) -> None:
    found = examine(patient(ILL[name][0]))
    answer = named(found, "remedy")
    assert answer.status == "ok"
    right, came = re.search(r"(\d+) of (\d+) losses reached", answer.seen).groups()
    assert right == came != "0"


def test_the_remedy_as_printed_heals(patient: Callable[..., str]) -> None:
    """The recommended line, in place of the loader."""
    broken = examine(patient("ReadsAhead(stock(num_workers=2))"))
    line = named(broken, "losses").fix.splitlines()[0]
    healed = examine(patient(f"train_data = pruned()\n{line}\nreturn ReadsAhead(loader)"))
    assert not_ok(healed) == {}
    assert "update(loss, indices)" in healed.verdict


@pytest.mark.parametrize("around", ["{}", "ReadsAhead({})", "ReadsAhead({}, by=3)"])
@pytest.mark.parametrize("arguments", ["", ", num_workers=2", ", collate_fn=scaled"])
def test_pairs_of_batch_and_indices_are_followed(around: str, arguments: str, patient: Callable[..., str]) -> None:
    loader = f"ours(with_indices=True{arguments})"
    found = examine(patient(around.format(loader)))
    assert not_ok(found) == {}
    assert found.verdict == "Every loss reaches its sample if the loop calls update(loss, indices)."


def test_pairs_that_do_not_match_are_noticed(patient: Callable[..., str]) -> None:
    """Rows in another order than their indices, indices in another order than their rows, and pairs taken apart."""
    inside = examine(patient("ours(with_indices=True, collate_fn=backwards)"))
    assert named(inside, "losses").status == "problem"
    found = examine(patient("Misled(stock())"))
    assert named(found, "remedy").status == "problem"
    assert "with_indices" not in named(found, "losses").fix
    lost = examine(patient("ReadsAhead(InParts(stock()))"))
    assert named(lost, "remedy").status == "not checkable"


@pytest.mark.parametrize("loader", ["stock(collate_fn=backwards)", "ours(with_indices=True, collate_fn=backwards)"])
def test_a_collate_function_that_sorts_gets_its_remedy_once(loader: str, patient: Callable[..., str]) -> None:
    """And indices that do not match the rows are not called fine."""
    found = examine(patient(loader))
    assert {name for name, status in not_ok(found).items() if status == "problem"} == {"losses", "order inside a batch"}
    lines = [line for check in found.checks for line in check.fix.splitlines()]
    assert len(set(lines)) == len(lines)
    assert any("update(loss, indices)" in line for line in lines)
    assert "indices" not in [check.name for check in found.checks]


def test_a_loader_that_ours_cannot_replace_is_examined_all_the_same(patient: Callable[..., str]) -> None:
    found = examine(patient("stock(Augmented(), batch_size=None, num_workers=2, in_order=False)"))
    assert named(found, "workers").status == "problem"


@pytest.mark.parametrize("loader", ["stock", "ours", "plain"])
def test_a_batch_that_brings_its_indices_may_be_in_any_order(loader: str, patient: Callable[..., str]) -> None:
    """As recommended for a collate_fn that sorts; whether the loop passes the indices on cannot be seen."""
    made = {"plain": "Torch(Indexed(), batch_size=8, collate_fn=backwards)"}
    found = examine(patient(made.get(loader, f"{loader}(Indexed(), collate_fn=backwards)")))
    assert not_ok(found) == {"indices": "warning"} | ({"wrapping": "warning"} if loader == "plain" else {})
    right, came = re.match(r"(\d+) of (\d+) .* by the indices that come", named(found, "losses").seen).groups()
    assert right == came
    assert re.search(BY_INDEX, named(found, "indices").fix)
    assert "update(loss, indices)" in found.verdict


@pytest.mark.parametrize("size", [60, 59])
def test_parts_of_a_row_that_are_of_different_samples_are_told(size: int, patient: Callable[..., str]) -> None:
    """With one copy among the samples, too."""
    data = "Indexed()" if size == 60 else "ConcatDataset([Indexed(59), Subset(Indexed(), [58])])"
    moved = "lambda s: {**default_collate(s), 'picture': default_collate([one['picture'] for one in s[::-1]])}"
    found = examine(patient(f"ours({data}, collate_fn={moved})"))
    assert not_ok(found) | {"copies": "ok"} == {"order inside a batch": "problem", "copies": "ok"}
    assert "picture" in named(found, "order inside a batch").seen


@pytest.mark.parametrize("data", ["Pictures()", "Halves()", "Indexed()", "Dicts()"])
@pytest.mark.parametrize("loader", ["stock({}, collate_fn={})", "ours({}, collate_fn={}, with_indices=True)"])
@pytest.mark.parametrize("collate", ["labels_shuffled", "labels_one_hot_shuffled"])
def test_labels_in_other_rows_than_their_inputs_are_noticed(
    data: str, loader: str, collate: str, patient: Callable[..., str]
) -> None:
    """With ten classes and with two, where many rows keep their label; recognized by content, or by exchanges."""
    found = examine(patient(loader.format(data, collate)))
    assert named(found, "order inside a batch").status == ("problem" if collate == "labels_shuffled" else "warning")
    assert found.verdict != "Every loss reaches its sample."


@pytest.mark.parametrize(
    "code",
    [
        "stock(Constant(), collate_fn=labels_shuffled)",  # equal labels may change places
        "stock(collate_fn=with_negatives)",
        "stock(collate_fn=with_targets_of_contrast)",
        "stock(collate_fn=labels_one_hot)",
        "ours(Words(), collate_fn=padded)",
    ],
)
def test_rows_that_only_look_moved_are_fine(code: str, patient: Callable[..., str]) -> None:
    assert not_ok(examine(patient(code))) == {}


def test_labels_that_cannot_be_compared_are_not_called_compared(patient: Callable[..., str]) -> None:
    found = examine(patient("stock(collate_fn=labels_noisy)"))
    assert "could not be compared" in named(found, "order inside a batch").seen
    assert "could not be compared" not in named(examine(patient("stock()")), "order inside a batch").seen


# ---- lists -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loader", ["stock({}, batch_size={}, collate_fn=as_it_comes)",
                                    "ours({}, batch_size={}, collate_fn=as_it_comes, num_workers=1)",
                                    "ours({}, batch_size={}, collate_fn=as_it_comes, with_indices=True)"])  # fmt: skip
@pytest.mark.parametrize("data", ["Pictures()", "Wide()", "Dicts()", "list(range(60))", "Boxes()"])
@pytest.mark.parametrize("size", [2, 3, 8])
def test_a_batch_may_be_the_list_of_its_samples(loader: str, data: str, size: int, patient: Callable[..., str]) -> None:
    """Also where samples have as many channels as a batch has samples."""
    found = examine(patient(loader.format(data, size)))
    assert not_ok(found) == {}
    assert "60 of 60" in named(found, "every sample").seen


# ---- items that are no samples ---------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["Pairs()", "NoisyPairs()", "Drawn()"])
def test_items_that_ignore_their_index_are_noticed(data: str, patient: Callable[..., str]) -> None:
    found = examine(patient(f"stock({data})"))
    answer = named(found, "positions")
    assert answer.status == ("problem" if data == "Pairs()" else "warning")
    assert "dataset[0]" in answer.fix
    assert found.verdict != "Every loss reaches its sample."


@pytest.mark.parametrize("data", ["Augmented()", "Flipped()", "Cropped()", "Partners()", "Masked()"])
def test_augmentation_of_a_sample_is_told_from_that(data: str, patient: Callable[..., str]) -> None:
    found = examine(patient(f"stock({data})"))
    assert not_ok(found) == {}
    assert "augmentation" in named(found, "positions").seen


def test_what_has_no_samples_to_choose_from_is_named(patient: Callable[..., str]) -> None:
    graph = examine(patient("Torch(Pictures(1))"))
    assert [(check.name, check.status) for check in graph.checks] == [("data set", "problem")]
    windows = examine(patient("stock(Windows())"))
    assert named(windows, "unit").status == "warning"
    assert "window" in named(windows, "unit").seen
    batches = examine(patient("stock(Batches(), batch_size=None)"))
    assert "batch" in named(batches, "unit").seen
    text = examine(patient("Torch(Pictures(), batch_size=8)"))
    assert "BPTT" in named(text, "sampler").means


def test_an_index_of_what_is_inside_is_not_the_position_of_a_sample(patient: Callable[..., str]) -> None:
    found = examine(patient("ours(Subset(Indexed(), range(5, 55)), collate_fn=backwards)"))
    assert not_ok(found) == {"losses": "problem", "order inside a batch": "problem"}


def test_every_wrong_loss_is_counted(patient: Callable[..., str]) -> None:
    """In a reversed batch every sample moves but the middle one of an odd batch: the last of a pruned epoch."""
    found = examine(patient("stock(collate_fn=backwards)"))
    wrong, came = map(int, re.search(r"(\d+) of (\d+) losses became", named(found, "losses").seen).groups())
    kept = came - N
    assert 0 < kept < N
    assert wrong == came - (kept % 8) % 2


def test_the_truth_does_not_come_from_what_is_checked(
    patient: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attribution that records each loss one place too far is caught."""
    note = TableSlice.note
    monkeypatch.setattr(TableSlice, "note", lambda self, where, scores, *rest: note(self, where, scores.roll(1), *rest))
    found = examine(patient("stock()"))
    assert named(found, "losses").status == "problem"
    assert "became the score of another sample" in named(found, "losses").seen


# ---- neither healthy nor ill -----------------------------------------------------------------------------------


def test_a_plain_data_set_gets_the_three_lines_and_a_trial(patient: Callable[..., str]) -> None:
    found = examine(patient("Torch(Pictures(), batch_size=8, shuffle=True, num_workers=2, drop_last=True)"))
    assert not_ok(found) == {"wrapping": "warning"}
    assert "Nothing is pruned yet" in found.verdict
    lines = named(found, "wrapping").fix
    assert "infobatch.InfoBatch(train_data, num_epochs)" in lines
    assert "infobatch.DataLoader(train_data, batch_size=8, num_workers=2, drop_last=True)" in lines
    assert "train_data.update" in lines
    assert "reached their samples" in named(found, "losses").seen


def test_a_plain_data_set_is_not_spared_its_other_illnesses(patient: Callable[..., str]) -> None:
    found = examine(patient("ReadsAhead(Torch(Pictures(), batch_size=8, shuffle=True))"))
    assert re.search(PAIRS, named(found, "losses").fix)
    found = examine(patient("Torch(Pictures(), batch_size=8, collate_fn=backwards)"))
    assert named(found, "order inside a batch").status == "problem"
    found = examine(patient("Torch(Pictures(), batch_size=8, sampler=DistributedSampler(Pictures(), 2, 0))"))
    assert named(found, "sampler").status == "warning"


def test_a_stream_cannot_be_pruned(patient: Callable[..., str]) -> None:
    found = examine(patient("Torch(Stream())"))
    assert not found.ok
    assert [check.name for check in found.checks] == ["data set"]
    assert "list(stream)" in found.checks[0].fix


WARNINGS = {
    "persistent": ("stock(num_workers=1, persistent_workers=True)", "workers", "persistent"),
    "cut short": ("Stops(stock())", "every sample", "24 of 60"),
    "drop_last": ("stock(drop_last=True, batch_size=40)", "drop_last", "up to 39"),
    "copies": ("stock(ConcatDataset([Pictures(30), Pictures(30)]))", "copies", "30 of 60"),
    "mixup with both labels": ("stock(collate_fn=mixup)", "order inside a batch", "depends on the other samples"),
    "mixup": ("stock(collate_fn=mixed)", "order inside a batch", "depends on the other samples"),
}


@pytest.mark.parametrize("name", WARNINGS)
def test_what_deserves_a_look_is_a_warning(name: str, patient: Callable[..., str]) -> None:
    code, check, seen = WARNINGS[name]
    found = examine(patient(code))
    assert found.ok
    assert named(found, check).status == "warning"
    assert seen in named(found, check).seen


def test_cudnn_that_tries_out_each_size_is_a_warning(
    patient: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    found = examine(patient("stock()"))
    assert found.ok
    assert "Pass drop_last=True" in named(found, "drop_last").fix
    assert named(examine(patient("stock(drop_last=True)")), "drop_last").status == "ok"


def test_augmentation_is_noted_and_fine(patient: Callable[..., str]) -> None:
    assert "augmentation" in named(examine(patient("stock(Augmented())")), "positions").seen
    assert "identical both times" in named(examine(patient("stock()")), "positions").seen


def test_what_cannot_be_seen_is_not_called_fine(patient: Callable[..., str]) -> None:
    generator = examine(patient("loader = stock()\nreturn loader.dataset, (batch for batch in loader)"))
    assert named(generator, "passes").status == "not checkable"
    hidden = "loader = stock()\nclass Hidden:\n    def __iter__(self):\n        return iter(loader)\n"
    closure = examine(patient(hidden + "return loader.dataset, Hidden()"))
    assert named(closure, "passes").status == "not checkable"
    nothing = examine(patient("stock(Things(), collate_fn=one_thing)"))
    assert named(nothing, "batch size").status == "not checkable"
    assert named(nothing, "losses").status == "not checkable"
    for found in (generator, closure, nothing):
        assert found.ok
        assert "could not be made" in found.verdict


def test_a_loader_of_ones_own_class(patient: Callable[..., str]) -> None:
    code = "class Mine(Torch):\n    pass\nd = pruned()\nreturn Mine(d, batch_size=8, sampler=d.sampler)"
    found = examine(patient(code))
    assert found.loader == "Mine over InfoBatch of Pictures"
    assert not_ok(found) == {}


def test_a_warning_shows_in_the_verdict() -> None:
    fine, odd = Check("passes", "ok", "two"), Check("copies", "warning", "half of them")
    assert Diagnosis("a:b", "a loader", 9, 1, (fine,)).verdict == "Every loss reaches its sample."
    found = Diagnosis("a:b", "a loader", 9, 1, (fine, odd))
    assert found.ok
    assert found.verdict == "Every loss reaches its sample. With warnings: see copies."


def test_the_remedy_for_a_sorting_collate_carries_the_index() -> None:
    """The recommended lines, run as printed."""
    samples = [(torch.tensor([3.0]), 0), (torch.tensor([1.0]), 1), (torch.tensor([2.0]), 2)]
    (line,) = (line for line in BY_COLLATE.splitlines() if line.startswith("*columns"))
    names: dict[str, Any] = {"samples": samples}
    exec(line.replace("key=...", "key=lambda sample: sample[0].item()"), names)
    assert names["indices"] == (1, 2, 0)
    assert "torch.tensor(indices)" in BY_COLLATE
