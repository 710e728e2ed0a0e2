"""The checks: each says what was seen, what it means and what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch.utils.data import IterableDataset, RandomSampler, SequentialSampler

from ...errors import plural
from .case import Case, holds_pruned
from .content import is_batch, moved_indices, overlap
from .probe import Trial, tail
from .sandbox import Order
from .tracing import fetch

Status = Literal["ok", "warning", "problem", "not checkable"]

INDICES = "indices"
"""The name of a check that is fine if the loop passes the indices to update."""

YOURS = "This error is raised in your code."
THREE_LINES = """train_data = infobatch.InfoBatch(train_data, num_epochs)
{line}
loss = train_data.update(criterion(model(inputs), targets))  # the criterion with reduction="none\""""
SAME_SAMPLE = """dataset[i] must always be the same sample, augmented or not: do not draw or shuffle in __getitem__
# to check, compare dataset[0] with itself, fetched twice"""
PASS_THEM = "loss = train_data.update(loss, indices)"
PAIRS = """for batch, indices in loader:  # pass the indices on together with their batch
    loss = train_data.update(loss, indices)"""
UNRECOGNIZED = "the samples could not be recognized in the batches"
BY_INDEX = f"""return *sample, index  # at the end of the data set's __getitem__
{PASS_THEM}  # these indices, not those of with_indices=True"""
BY_COLLATE = f"""{BY_INDEX}
# collate_fn gets samples (..., index): sort them together and return the indices in the same order, for example
*columns, indices = zip(*sorted(samples, key=...))
return ..., torch.tensor(indices)"""


@dataclass(frozen=True)
class Check:
    """The answer to one question."""

    name: str
    status: Status
    seen: str
    means: str = ""
    fix: str = ""
    """What to do, as lines of code if possible."""


def no_import(error: BaseException) -> Check:
    if isinstance(error, SystemExit):
        seen = f"{tail(error)}\nThe script exits on import, or while it builds the loader."
        fix = 'Move the code that exits under: if __name__ == "__main__":'
        return Check("import", "problem", seen, YOURS, fix)
    return Check("import", "problem", tail(error), YOURS)


# ---- what can be seen before a pass ----------------------------------------------------------------------------


def data_set(case: Case) -> Check:
    name, dataset, known = "data set", case.dataset, case.data
    kind = type(dataset).__name__
    if isinstance(dataset, IterableDataset):
        means = "Pruning remembers a loss per index, and a stream has none."
        fix = "train_data = infobatch.InfoBatch(list(stream), num_epochs)  # or load it map-style"
        return Check(name, "problem", f"{kind} is an IterableDataset: a stream without indices", means, fix)
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        seen = f"{kind} has no __len__ or no __getitem__"
        return Check(name, "problem", seen, "Scores belong to indices.", "Add the missing method.")
    try:
        size = len(dataset)
    except Exception as error:
        return Check(name, "problem", tail(error), YOURS)
    if size == 0:
        return Check(name, "problem", "no samples", "There is nothing to train on.", "Check the path or split.")
    if size == 1:
        means = "There is nothing to choose from. To prune, an epoch needs many samples, each with a loss of its own."
        return Check(name, "problem", f"one sample in {kind}, for example a single graph", means)
    if known is not None and not known.shard_scores and known.owned.numel() != size:
        seen = f"len(dataset) is {size}, but was {known.owned.numel()} when it was wrapped"
        means = "Scores belong to indices, and their number is fixed."
        return Check(name, "problem", seen, means, "Wrap the data set once it is complete.")
    return Check(name, "ok", f"{size} samples in {kind}")


def wrapping(case: Case) -> Check:
    name, known, inner = "wrapping", case.data, case.inner
    if known is not None:
        reads = known if inner is None else inner.dataset
        if reads is not known and not (reads is known.dataset and case.draws_from_plan):
            seen = f"the loader reads {type(reads).__name__} instead of train_data"
            return Check(name, "problem", seen, "It does not follow the plan.", case.line())
        return Check(name, "ok", f"{known.method!r} for {known.num_epochs} epochs")
    fix = THREE_LINES.format(line=case.line())
    if holds_pruned(case.dataset):
        seen = f"the training data are inside a {type(case.dataset).__name__}"
        return Check(name, "problem", seen, "Its indices are not those of the scores: wrap last.", fix)
    seen = f"{type(case.dataset).__name__} is not wrapped: nothing is pruned"
    return Check(name, "warning", seen, "The checks below were made with these lines added.", fix)


def sampler(case: Case) -> Check:
    name, names = "sampler", [type(one).__name__ for one in case.samplers]
    shards = [kind for kind in names if "Distributed" in kind or "Shard" in kind]
    if shards:
        means = "It does not follow the plan. train_data.sampler already divides the samples among ranks."
        status: Status = "warning" if case.data is None else "problem"
        return Check(name, status, f"{shards[0]} divides the samples", means, case.line())
    if case.inner is None:
        return Check(name, "not checkable", "no torch loader found", "", case.line())
    if case.ours or case.draws_from_plan:
        return Check(name, "ok", "batches are drawn from train_data.sampler")
    first = case.samplers[-1]
    if case.data is None:
        if isinstance(first, (RandomSampler, SequentialSampler)):
            means = "The plan shuffles: not for training that relies on the order, such as BPTT on a running text."
            in_order = isinstance(first, SequentialSampler)
            return Check(name, "ok", f"{names[-1]}: the plan replaces it, and is shuffled", means * in_order)
        means = "The plan replaces it and decides which samples are used; what the sampler did is lost."
        return Check(name, "warning", f"a {names[-1]}", means, case.line())
    has = {RandomSampler: "shuffle=True", SequentialSampler: "no sampler"}.get(type(first), f"a {names[-1]}")
    means = "The plan decides which samples are used, and is already shuffled. Nothing is pruned, and update() raises."
    return Check(name, "problem", f"{has} instead of train_data.sampler", means, case.line())


def batch_sampler(case: Case) -> Check | None:
    own = case.own_batches
    if own is None:
        return None
    name, kind = "batch sampler", type(own).__name__
    fix = f"loader = infobatch.DataLoader(train_data, batch_sampler={kind}(train_data.sampler, ...))"
    if not case.draws_from_plan:
        means = "The plan decides which samples are used, so a batch sampler must draw from it."
        return Check(name, "warning" if case.data is None else "problem", f"{kind} draws indices itself", means, fix)
    if case.ours:
        return Check(name, "ok", f"{kind} around train_data.sampler; each batch carries its indices")
    means = "It may reorder samples, and a torch loader does not say which ones are in a batch."
    return Check(name, "problem", f"{kind} around train_data.sampler", means, fix)


def workers(case: Case) -> Check | None:
    inner = case.inner
    if inner is None:
        return None
    method = getattr(inner.multiprocessing_context, "get_start_method", str)() if inner.num_workers else ""
    seen = plural(inner.num_workers, "worker") if inner.num_workers else "no workers"
    seen += f", started by {method}" if method else ""
    if inner.num_workers and not getattr(inner, "in_order", True) and not case.ours:
        means = "Batches arrive in any order, and a torch loader does not say which samples are in them."
        return Check("workers", "problem", f"{seen}, in_order=False", means, case.line())
    if inner.persistent_workers and not case.ours:
        means = "Fine if every epoch runs to its end; after a break, the next epoch raises MisalignedError."
        return Check("workers", "warning", f"{seen}, persistent", means, case.line())
    return Check("workers", "ok", seen + (", persistent" if inner.persistent_workers else ""))


def drop_last(case: Case, size: int) -> Check | None:
    if case.inner is None:
        return None
    batch = case.batch_size or 1
    if not case.inner.drop_last:
        if batch == 1 or case.own_batches is not None or not torch.backends.cudnn.benchmark:
            return None
        means = "cuDNN benchmarks every new batch size for seconds, and each pruned epoch ends with another size."
        seen = "off, and torch.backends.cudnn.benchmark is on"
        return Check("drop_last", "warning", seen, means, "Pass drop_last=True, or leave benchmark off.")
    seen = f"up to {plural(batch - 1, 'sample')} left out per epoch, different ones each time"
    if size < 2 * batch:
        means = f"A pruned epoch of {size} samples may have no batch of {batch} at all."
        return Check("drop_last", "warning", seen, means, "Use smaller batches, or drop_last=False.")
    return Check("drop_last", "ok", seen)


def out_of_reach(case: Case) -> Check:
    """Say why no pass could be made on copies."""
    kind = type(case.given).__name__
    if hasattr(case.given, "__next__"):
        fix = "Name a loader, or an object whose __iter__ starts a pass."
        means = "An iterator can be consumed only once, and training still needs it."
        return Check("passes", "not checkable", f"{kind} is an iterator", means, fix)
    means = "A pass would change your own train_data."
    fix = "Keep the loader as an attribute, or name the loader itself."
    return Check("passes", "not checkable", f"train_data was not found in the attributes of {kind}", means, fix)


# ---- what passes show ------------------------------------------------------------------------------------------


def passes(case: Case, trial: Trial) -> Check:
    last, size = trial.traces[-1], len(case.dataset)
    if last.crash:
        fix = ""
        if "IndexError" in last.crash and _out_of_range(case.dataset, size - 1):
            fix = f"len(dataset) is {size}, but dataset[{size - 1}] does not exist: fix __len__."
        return Check("passes", "problem", last.crash, YOURS, fix)
    if last.endless:
        seen = f"{last.total} rows for {len(trial.data)} samples, without an end"
        return Check("passes", "problem", seen, "An epoch must end.", "Let __iter__ stop after one pass.")
    batches = " + ".join(str(len(trace.counts) + trace.uncounted) for trace in trial.traces)
    return Check("passes", "ok", f"{batches} batches")


def _out_of_range(dataset: Any, index: int) -> bool:
    try:
        dataset[index]
    except (Exception, SystemExit) as error:
        return isinstance(error, IndexError)
    return False


def batch_size(trial: Trial) -> Check:
    name, trace = "batch size", trial.traces[0]
    lost = [(asked, delivered) for asked, delivered in trace.census.sizes if asked != delivered]
    if lost:
        seen = f"__getitems__ returned {lost[0][1]} samples for {lost[0][0]} indices"
        return Check(name, "problem", seen, "Which samples these are is unknown.", "Return one sample per index.")
    if not trace.counts:
        means = "The number of losses per batch is unknown."
        return Check(name, "not checkable", "no part of a batch has one row per sample", means)
    usual = trace.census.frequent_sizes[0] if trace.census.frequent_sizes else 0
    odd = [count for count in trace.counts if count not in trace.census.frequent_sizes]
    if trace.changed_counts and odd:
        means = "update() needs one loss per fetched sample, in the order of fetching."
        fix = f"loss = loss.view(-1, {usual}).mean(0)  # one loss per sample, before update()"
        if odd[0] < usual:
            fix = f"Leave samples out in the data set before wrapping it, not in collate_fn; or:\n{BY_INDEX}"
        seen = f"{plural(usual, 'sample')} fetched for a batch of {plural(odd[0], 'row')}"
        return Check(name, "problem", seen, means, fix)
    return Check(name, "ok", f"one row per sample, batches of {max(trace.counts)}")


def losses(trial: Trial, order: Order, remedy: str = "") -> Check:
    name, total, failed = "losses", trial.account, trial.failed
    if failed is not None:
        seen = f"batch {failed.error_at} of epoch {trial.traces.index(failed)}: {failed.error}"
        astray = plural(total.wrong, "loss") if total.wrong else "No loss"
        fix = BY_INDEX if failed.in_pieces else remedy or "See the other checks."
        return Check(name, "problem", seen, f"{astray} went to a wrong sample, and training stops here.", fix)
    if total.wrong:
        seen = f"{total.wrong} of {total.losses} losses became the score of another sample"
        return Check(name, "problem", seen, "Nothing raises: the wrong samples would be pruned.", BY_INDEX)
    if total.right:
        unsure = f", {total.undecided} could not be checked" if total.undecided else ""
        how = " by the indices that come with a batch" if trial.pairs or trial.by is not None else ""
        return Check(name, "ok", f"{total.right} of {total.losses} reached their samples{how}{unsure}")
    if total.losses and order == "kept":
        seen = f"{plural(total.losses, 'loss')}, counted batch by batch; collate_fn keeps the order of samples"
        return Check(name, "ok", seen)
    if total.losses and order == "changed":
        means = "Nothing raises: the wrong samples would be pruned."
        return Check(name, "problem", "collate_fn changes the order of samples", means, BY_COLLATE)
    means = "The samples could not be recognized in the batches."
    return Check(
        name, "not checkable", f"{plural(total.losses, 'loss')}, none of which could be checked", means, BY_INDEX
    )


def indices(trial: Trial) -> Check:
    """Ask for the indices in batches whose rows are reordered; whether the loop passes them is unknown."""
    seen = f"without indices in update(), {plural(trial.account.wrong, 'loss')} would go to another sample"
    means = "The rows of a batch are not in the order of fetching, but the indices that come with it match them."
    return Check(INDICES, "warning", seen, means, PASS_THEM)


def pairs(case: Case) -> Check | None:
    if not case.yields_pairs:
        return None
    return Check(INDICES, "ok", "each batch comes with its indices; update() needs them", "", PAIRS)


def order_inside(order: Order, trial: Trial) -> Check:
    name, inside = "order inside a batch", trial.account.inside
    if order == "kept":
        left = "; some fields of the samples could not be compared" if trial.traces[0].placement[1] else ""
        return Check(name, "ok", f"unchanged{left}")
    if order == "apart" and trial.moved:
        paths = ", ".join("".join(f"[{key!r}]" for key in where) or "batch" for where in trial.moved)
        seen = f"parts of a row belong to different samples: {paths} is moved, in {max(trial.moved.values())} rows"
        means = "If inputs or labels are moved by mistake, training is wrong, too. No loss belongs to a single sample."
        return Check(name, "problem", seen, means, BY_COLLATE)
    if order == "apart":
        seen = "some fields are in the order of fetching, others seem to be in another order"
        means = "Fine for lengths sorted on their own and the like; wrong if inputs and labels no longer match."
        return Check(name, "warning", seen, means, BY_COLLATE)
    if order == "changed":
        seen = "samples change places in the batch"
        if inside:
            seen = f"{plural(inside, 'loss')} went to another sample of the same batch"
        means = "collate_fn (or __getitems__) sorts or shuffles. Nothing raises, because this leaves no trace."
        return Check(name, "problem", seen, means, BY_COLLATE)
    if order == "mixed":
        means = (
            "Rows combine several samples, as in mixup, or contain random numbers. A loss then belongs to the "
            "combination, and the order of the rows could not be checked."
        )
        return Check(name, "warning", "a row of collate_fn depends on the other samples", means, BY_INDEX)
    return Check(name, "not checkable", UNRECOGNIZED, "", BY_INDEX)


def without_repeats(losses: Check, indices: Check | None, inside: Check) -> list[Check | None]:
    """Say each remedy once, and do not call indices fine that come in another order than the rows."""
    if inside.status != "problem":
        return [losses, indices, inside]
    if losses.fix and inside.fix.startswith(losses.fix):
        losses = replace(losses, fix=f"See: {inside.name}.")
    return [losses, None if indices is not None and indices.status == "ok" else indices, inside]


def every_sample(case: Case, trial: Trial) -> Check:
    name, trace = "every sample", trial.traces[0]
    fetched, expected = trace.census.fetched, trace.planned
    if case.inner is not None and case.inner.drop_last:
        expected -= expected % (case.batch_size or 1)
    twice = sum(fetched.values()) - len(fetched)
    delivered = min(len(fetched), trace.total)  # more may have been fetched than delivered
    seen = f"{delivered} of {expected} delivered in epoch 0" + (f", {twice} of them twice" if twice else "")
    if trace.changed_counts or trace.uncounted:
        return Check(name, "not checkable", seen, "The rows of a batch do not correspond to its samples.")
    if delivered == expected and not twice:
        return Check(name, "ok", seen)
    if twice or not (case.ours or case.draws_from_plan or case.data is None):
        return Check(name, "problem", seen, "Each sample of the plan must be delivered once.", case.line())
    means = "The epoch ends early. Samples that are not delivered keep their previous score, if any."
    return Check(name, "warning", seen, means, "Run the loader to its end, unless this is intended.")


def positions(trial: Trial, follows_index: Callable[[], bool]) -> Check | None:
    """Check that an index means the same sample in both epochs, apart from augmentation."""
    if len(trial.traces) < 2:
        return None
    name, (before, after) = "positions", (trace.census.keys for trace in trial.traces[:2])
    both = before.keys() & after.keys()
    differ = sum(before[index] != after[index] for index in both)
    moved = moved_indices(before, after)
    if moved > 0.01 * len(both):
        seen = f"{moved} of {len(both)} samples had another index in epoch 0"
        means = "The data set shuffles or draws its items itself, so each epoch would score another sample."
        return Check(name, "problem", seen, means, SAME_SAMPLE)
    if not differ:
        return Check(name, "ok", f"{len(both)} samples read twice, identical both times")
    seen = f"{differ} of {len(both)} samples differ in the second epoch"
    if follows_index():
        return Check(name, "ok", f"{seen}: augmentation, which is fine")
    seen += ", and two fetches of an index are no more alike than those of two indices"
    means = "Strong augmentation looks like this, and so do items drawn at random: this cannot be known from outside."
    return Check(name, "warning", seen, means, SAME_SAMPLE)


def unit(case: Case, size: int) -> Check | None:
    """Warn about items that are no samples of their own: whole batches, and windows of one sequence."""
    try:
        samples = list(fetch(case.dataset, range(min(size, 6))))
        whole = case.inner is not None and case.batch_size is None and is_batch(samples[0])
        windows = overlap(samples)
    except (Exception, SystemExit):
        return None
    if whole:
        seen = "batch_size=None, and an item is a whole batch or very large"
        means = "An index has one score, so whole batches would be left out. Pruning needs an index per sample."
        return Check("unit", "warning", seen, means)
    if windows:
        means = "A part that is left out comes again in the next window, so little is saved. Not a case for pruning."
        return Check("unit", "warning", "each sample repeats most of the one before: overlapping windows", means)
    return None


def copies(trial: Trial) -> Check:
    keys = trial.traces[0].census.keys
    if not any(keys.values()):
        return Check("copies", "not checkable", "samples contain no tensors, numbers or texts")
    same = len(keys) - len(set(keys.values()))
    if same > 0.01 * len(keys):
        means = "Each copy has its own score and is pruned independently. Every loss still reaches its sample."
        return Check("copies", "warning", f"{same} of {len(keys)} samples are copies of others", means)
    return Check("copies", "ok", f"{same or 'none'}")


def lines(case: Case, fixed: Trial | None) -> str:
    """Return the lines of code that were tried as a remedy; empty if none worked."""
    if fixed is None or fixed.failed is not None or fixed.account.wrong:
        return ""
    return f"{case.line(fixed.pairs)}\n{PAIRS}" if fixed.pairs else case.line()


def remedy(case: Case, fixed: Trial, order: Order) -> Check:
    name, total, failed = "remedy", fixed.account, fixed.failed
    tried = f"infobatch.DataLoader{'(..., with_indices=True)' if fixed.pairs else ''} was tried"
    if failed is not None:
        return Check(name, "not checkable", f"{tried} and stopped: {failed.error or failed.crash}", "", BY_INDEX)
    seen = f"{tried}: {total.right} of {total.losses} losses reached their samples"
    if total.wrong:
        return Check(name, "problem", seen, "The batches do not match the indices that come with them.", BY_INDEX)
    if not total.right and order != "kept":
        return Check(name, "not checkable", f"{tried}: {UNRECOGNIZED}", "", lines(case, fixed))
    return Check(name, "ok", seen if total.right else f"{tried}: all losses were accepted", "", lines(case, fixed))
