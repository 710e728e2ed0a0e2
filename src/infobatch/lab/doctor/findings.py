"""The questions, each with its answer: what was seen, what it means, what mends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils.data import IterableDataset, RandomSampler, SequentialSampler

from ...errors import counted
from .case import Case, holds_pruned
from .probe import Trial, tail
from .sandbox import Order

Status = Literal["ok", "warning", "problem", "not checkable"]

INDICES = "indices"
"""The name of a check: all is well where the loop passes them."""

YOURS = "The error is raised by your own code."
THREE_LINES = """train_data = infobatch.InfoBatch(train_data, num_epochs)
{line}
loss = train_data.update(criterion(model(inputs), targets))  # the criterion with reduction="none\""""
PASS_THEM = "loss = train_data.update(loss, indices)  # the indices as they come with the batch"
BY_INDEX = f"""return *sample, index  # at the end of the data set's __getitem__
{PASS_THEM}"""
BY_COLLATE = f"""{BY_INDEX}
# collate_fn gets (..., index) samples: sort them whole, and hand the indices on in the same order, as in
*columns, indices = zip(*sorted(samples, key=...))
return ..., torch.tensor(indices)"""


@dataclass(frozen=True)
class Check:
    name: str
    status: Status
    seen: str
    means: str = ""
    mend: str = ""
    """What to do, as lines of code where they say it best."""


def no_import(error: BaseException) -> Check:
    if isinstance(error, SystemExit):
        seen = f"{tail(error)}\nIt ends the program while it is imported, or while the loader is made."
        mend = 'Put the part that ends it under: if __name__ == "__main__":'
        return Check("import", "problem", seen, YOURS, mend)
    return Check("import", "problem", tail(error), YOURS)


# ---- what can be seen before a pass ----------------------------------------------------------------------------


def data_set(case: Case) -> Check:
    name, dataset, known = "data set", case.dataset, case.data
    kind = type(dataset).__name__
    if isinstance(dataset, IterableDataset):
        means = "Scores belong to positions, so a stream cannot be pruned."
        mend = "train_data = infobatch.InfoBatch(list(stream), num_epochs)  # or load it map-style"
        return Check(name, "problem", f"{kind} is an IterableDataset: a stream without positions", means, mend)
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        return Check(
            name, "problem", f"{kind} lacks __len__ or __getitem__", "Scores belong to positions.", "Add it."
        )
    try:
        size = len(dataset)
    except Exception as error:
        return Check(name, "problem", tail(error), YOURS)
    if size == 0:
        return Check(name, "problem", "no samples", "There is nothing to train on.", "Check its path or split.")
    if known is not None and not known.shard_scores and known.owned.numel() != size:
        seen = f"len(dataset) is {size}, and was {known.owned.numel()} when it was wrapped"
        means = "Scores belong to positions, and their number is fixed."
        return Check(name, "problem", seen, means, "Wrap the data set when it is complete.")
    return Check(name, "ok", f"{size} samples in {kind}")


def wrapping(case: Case) -> Check:
    name, known, inner = "wrapping", case.data, case.inner
    if known is not None:
        reads = known if inner is None else inner.dataset
        if reads is not known and not (reads is known.dataset and case.draws_from_plan):
            seen = f"the loader reads {type(reads).__name__} and not train_data"
            return Check(name, "problem", seen, "It knows nothing of the plan.", case.line())
        return Check(name, "ok", f"{known.method!r} for {known.num_epochs} epochs")
    mend = THREE_LINES.format(line=case.line())
    if holds_pruned(case.dataset):
        seen = f"the training data are inside a {type(case.dataset).__name__}"
        return Check(name, "problem", seen, "Its positions are not those of the scores. Wrap last.", mend)
    seen = f"{type(case.dataset).__name__} is not wrapped: nothing is pruned"
    return Check(name, "warning", seen, "The checks below show what these lines would do.", mend)


def sampler(case: Case) -> Check:
    name, names = "sampler", [type(one).__name__ for one in case.samplers]
    shards = [kind for kind in names if "Distributed" in kind or "Shard" in kind]
    if shards:
        means = "It knows nothing of the plan. train_data.sampler shares out to ranks by itself."
        status: Status = "warning" if case.data is None else "problem"
        return Check(name, status, f"{shards[0]} deals out the samples", means, case.line())
    if case.inner is None:
        return Check(name, "not checkable", "no torch loader found", "", case.line())
    if case.ours or case.draws_from_plan:
        return Check(name, "ok", "batches are drawn from train_data.sampler")
    first = case.samplers[-1]
    if case.data is None:
        if isinstance(first, (RandomSampler, SequentialSampler)):
            return Check(name, "ok", f"{names[-1]}: the plan takes its place, and is shuffled")
        means = "The plan takes its place and decides who comes: what it does would be lost."
        return Check(name, "warning", f"a {names[-1]}", means, case.line())
    has = {RandomSampler: "shuffle=True", SequentialSampler: "no sampler"}.get(type(first), f"a {names[-1]}")
    means = "The plan says who comes, and is shuffled already. Nothing is pruned, and update() raises."
    return Check(name, "problem", f"{has}, and not train_data.sampler", means, case.line())


def batch_sampler(case: Case) -> Check | None:
    own = case.own_batches
    if own is None:
        return None
    name, kind = "batch sampler", type(own).__name__
    mend = f"loader = infobatch.DataLoader(train_data, batch_sampler={kind}(train_data.sampler, ...))"
    if not case.draws_from_plan:
        means = "The plan says who comes: a batch sampler has to draw from it."
        return Check(name, "warning" if case.data is None else "problem", f"{kind} draws on its own", means, mend)
    if case.ours:
        return Check(name, "ok", f"{kind} around train_data.sampler; each batch brings its indices")
    means = "It may reorder, and a torch loader does not say whose batch it delivers."
    return Check(name, "problem", f"{kind} around train_data.sampler", means, mend)


def workers(case: Case) -> Check | None:
    inner = case.inner
    if inner is None:
        return None
    method = getattr(inner.multiprocessing_context, "get_start_method", str)() if inner.num_workers else ""
    seen = counted(inner.num_workers, "worker") if inner.num_workers else "no workers"
    seen += f" by {method}" if method else ""
    if inner.num_workers and not getattr(inner, "in_order", True) and not case.ours:
        means = "Batches come in any order, and a torch loader does not say whose they are."
        return Check("workers", "problem", f"{seen}, in_order=False", means, case.line())
    if inner.persistent_workers and not case.ours:
        means = "Fine while every pass is walked to its end; after a break the next pass raises MisalignedError."
        return Check("workers", "warning", f"{seen}, persistent", means, case.line())
    return Check("workers", "ok", seen + (", persistent" if inner.persistent_workers else ""))


def drop_last(case: Case, size: int) -> Check | None:
    if case.inner is None:
        return None
    batch = case.batch_size or 1
    if not case.inner.drop_last:
        if batch == 1 or case.own_batches is not None or not torch.backends.cudnn.benchmark:
            return None
        means = "cuDNN tries out every new size of a batch for seconds, and each pruned epoch ends in another one."
        seen = "off, and torch.backends.cudnn.benchmark is on"
        return Check("drop_last", "warning", seen, means, "Pass drop_last=True, or leave benchmark off.")
    seen = f"up to {counted(batch - 1, 'sample')} of each epoch left out, other ones each time"
    if size < 2 * batch:
        means = f"A pruned epoch of {size} samples may have no batch of {batch} at all."
        return Check("drop_last", "warning", seen, means, "Take smaller batches, or drop_last=False.")
    return Check("drop_last", "ok", seen)


def out_of_reach(case: Case) -> Check:
    """No pass could be made on copies."""
    kind = type(case.given).__name__
    if hasattr(case.given, "__next__"):
        mend = "Name a loader, or an object whose __iter__ begins a pass."
        return Check(
            "passes", "not checkable", f"a {kind}", "An iterator makes one pass, and that one is yours.", mend
        )
    means = "A pass would change your own train_data."
    mend = "Keep the loader as an attribute, or name the loader itself."
    return Check("passes", "not checkable", f"train_data was not found in the attributes of {kind}", means, mend)


# ---- what passes show ------------------------------------------------------------------------------------------


def passes(case: Case, trial: Trial) -> Check:
    last, size = trial.walks[-1], len(case.dataset)
    if last.crash:
        mend = ""
        if "IndexError" in last.crash and _out_of_range(case.dataset, size - 1):
            mend = f"len(dataset) says {size}, but dataset[{size - 1}] is not there: mend __len__."
        return Check("passes", "problem", last.crash, YOURS, mend)
    if last.endless:
        seen = f"{last.total} rows of {len(trial.data)} samples, and no end"
        return Check("passes", "problem", seen, "An epoch has an end.", "Let __iter__ stop after one pass.")
    batches = " + ".join(str(len(walk.counts) + walk.uncounted) for walk in trial.walks)
    return Check("passes", "ok", f"{batches} batches, {'one pass' if len(trial.walks) == 1 else 'pass by pass'}")


def _out_of_range(dataset: Any, index: int) -> bool:
    try:
        dataset[index]
    except (Exception, SystemExit) as error:
        return isinstance(error, IndexError)
    return False


def reading_ahead(case: Case, trial: Trial, mended: Trial | None, lookahead: int) -> Check | None:
    if not case.around:
        return None
    kind, name = type(case.given).__name__, "reading ahead"
    if trial.failed is None:
        return Check(name, "ok", f"{kind} hands each batch on as it comes")
    if mended is None or mended.failed is not None:
        return Check(name, "not checkable", f"{kind} could not be followed")
    if not lookahead:
        return Check(name, "ok", f"{kind} hands each batch on as it comes")
    means = "The loader has delivered a later batch than the one that the losses are of."
    seen = f"{kind} has fetched {counted(lookahead, 'more batch')} when it hands one on"
    return Check(name, "problem", seen, means, case.line(lookahead))


def batch_size(trial: Trial) -> Check:
    name, walk = "batch size", trial.walks[0]
    lost = [(asked, came) for asked, came in walk.census.sizes if asked != came]
    if lost:
        seen = f"__getitems__ returned {lost[0][1]} samples for {lost[0][0]} indices"
        return Check(name, "problem", seen, "Nobody can tell whose they are.", "Return one sample for each index.")
    if not walk.counts:
        means = "How many losses a batch has is not known."
        return Check(name, "not checkable", "nothing in a batch has one row a sample", means)
    usual = walk.census.likely[0] if walk.census.likely else 0
    odd = [count for count in walk.counts if count not in walk.census.likely]
    if walk.changed_counts and odd:
        means = "update() wants one loss for each sample that was fetched, in that order."
        mend = f"loss = loss.view(-1, {usual}).mean(0)  # one loss a sample, before update()"
        if odd[0] < usual:
            mend = f"Leave samples out in the data set, before it is wrapped, and not in collate_fn; or:\n{BY_INDEX}"
        seen = f"{counted(usual, 'sample')} fetched for a batch of {counted(odd[0], 'row')}"
        return Check(name, "problem", seen, means, mend)
    return Check(name, "ok", f"one row a sample, batches of {max(walk.counts)}")


def losses(trial: Trial, order: Order) -> Check:
    name, total, failed = "losses", trial.account, trial.failed
    if failed is not None:
        seen = f"batch {failed.error_at} of epoch {trial.walks.index(failed)}: {failed.error}"
        astray = counted(total.wrong, "loss") if total.wrong else "No loss"
        return Check(
            name, "problem", seen, f"{astray} went astray, and training stops here.", "See the other checks."
        )
    if total.wrong:
        seen = f"{total.wrong} of {total.came} losses became the score of another sample"
        return Check(name, "problem", seen, "Nothing raises: the wrong samples would be pruned.", BY_INDEX)
    if total.right:
        unsure = f", {total.undecided} could not be told" if total.undecided else ""
        how = "" if trial.by is None else " by the indices that come with a batch"
        return Check(name, "ok", f"{total.right} of {total.came} reached their samples{how}{unsure}")
    if total.came and order == "kept":
        seen = f"{counted(total.came, 'loss')}, counted batch by batch; collate_fn keeps the order of samples"
        return Check(name, "ok", seen)
    if total.came and order == "changed":
        means = "Nothing raises: the wrong samples would be pruned."
        return Check(name, "problem", "collate_fn changes the order of samples", means, BY_COLLATE)
    means = "The samples could not be recognised in the batches."
    return Check(name, "not checkable", f"{counted(total.came, 'loss')}, none for certain", means, BY_INDEX)


def indices(trial: Trial) -> Check:
    """Of batches that bring theirs, in an order of their own. Whether the loop passes them on is not seen."""
    seen = f"with update(loss) alone {counted(trial.account.wrong, 'loss')} would go to another sample"
    means = "A batch is in another order than it was fetched in, and so are the indices that come with it."
    return Check(INDICES, "warning", seen, means, PASS_THEM)


def order_inside(order: Order, trial: Trial) -> Check:
    name, inside = "order inside a batch", trial.account.inside
    if trial.account.elsewhere and order == "kept":
        seen = "one part of a row is of the sample that was fetched, another part of another sample"
        means = "Fine for negatives and the like; wrong if the loss is of the part that was moved."
        return Check(name, "warning", seen, means, BY_COLLATE)
    if order == "kept":
        return Check(name, "ok", "as it was fetched")
    if order == "changed":
        seen = "a sample in one place of a batch comes out in another"
        if inside:
            seen = f"{counted(inside, 'loss')} went to another sample of the same batch"
        means = (
            "collate_fn (or __getitems__) sorts or shuffles. Nobody can see that from outside, and nothing raises."
        )
        return Check(name, "problem", seen, means, BY_COLLATE)
    if order == "mixed":
        means = (
            "Rows are made of several samples, as mixup does, or of random numbers. A loss is then of what was "
            "shown, and whether the rows are in order could not be seen."
        )
        return Check(name, "warning", "a row of collate_fn depends on the other samples", means, BY_INDEX)
    return Check(name, "not checkable", "the samples could not be recognised in the batches", "", BY_INDEX)


def every_sample(case: Case, trial: Trial) -> Check:
    name, walk = "every sample", trial.walks[0]
    fetched, expected = walk.census.fetched, walk.planned
    if case.inner is not None and case.inner.drop_last:
        expected -= expected % (case.batch_size or 1)
    twice = sum(fetched.values()) - len(fetched)
    came = min(len(fetched), walk.total)  # more may have been fetched than were handed on
    seen = f"{came} of {expected} came in epoch 0" + (f", {twice} of them again" if twice else "")
    if walk.changed_counts or walk.uncounted:
        return Check(name, "not checkable", seen, "The rows of a batch are not its samples.")
    if came == expected and not twice:
        return Check(name, "ok", seen)
    if twice or not (case.ours or case.draws_from_plan or case.data is None):
        return Check(name, "problem", seen, "Each sample of the plan must come once.", case.line())
    means = "The pass is cut short. Samples that do not come keep the score they had, or none."
    return Check(name, "warning", seen, means, "Walk the loader to its end, if that is not meant.")


def positions(trial: Trial) -> Check | None:
    """Whether a position means the same sample in both epochs; augmentation is fine."""
    if len(trial.walks) < 2:
        return None
    before, after = (walk.census.keys for walk in trial.walks[:2])
    both = before.keys() & after.keys()
    where = {keys: sample for sample, keys in before.items()}
    other = [sample for sample in both if before[sample] != after[sample]]
    moved = sum(where.get(after[sample], sample) != sample for sample in other)
    if moved > 0.01 * len(both):
        seen = f"{moved} of {len(both)} samples were in another place in epoch 0"
        means = "The data set changes its order by itself: a score would belong to another sample in each epoch."
        return Check(
            "positions", "problem", seen, means, "dataset[i] must be the same sample throughout; the plan shuffles."
        )
    if other:
        seen = f"{len(other)} of {len(both)} samples looked different the second time: augmentation, which is fine"
        return Check("positions", "ok", seen)
    return Check("positions", "ok", f"{len(both)} samples were the same both times")


def copies(trial: Trial) -> Check:
    keys = trial.walks[0].census.keys
    if not any(keys.values()):
        return Check("copies", "not checkable", "samples without tensors, numbers or texts")
    same = len(keys) - len(set(keys.values()))
    if same > 0.01 * len(keys):
        means = "Each copy has a score of its own, and is pruned on its own. Every loss still reaches its sample."
        return Check("copies", "warning", f"{same} of {len(keys)} samples are the same as another", means)
    return Check("copies", "ok", f"{counted(same, 'sample') if same else 'none'} the same as another")


def cost(case: Case, trial: Trial) -> Check:
    passes, workers = len(trial.walks), max(1, case.inner.num_workers if case.inner is not None else 1)
    reading = sum(walk.census.seconds for walk in trial.walks) / workers / passes
    own = sum(walk.planning + walk.updating for walk in trial.walks) / passes
    seen = f"{own:.3f} s an epoch to plan and to take the losses, beside {reading:.3f} s to read the samples"
    if own > 1 and own > 0.05 * reading:
        return Check("cost", "warning", seen, "Training comes on top of reading; see how much that is.")
    return Check("cost", "ok", seen)


def remedy(case: Case, mended: Trial, lookahead: int) -> Check:
    name, line, total, failed = "remedy", case.line(lookahead), mended.account, mended.failed
    if failed is not None:
        seen = f"infobatch.DataLoader was tried, and stopped: {failed.error or failed.crash}"
        return Check(name, "not checkable", seen, "", BY_INDEX)
    status: Status = "problem" if total.wrong else "ok"
    return Check(name, status, f"tried, and {total.right} of {total.came} losses reached their samples", "", line)
