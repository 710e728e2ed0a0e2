"""Texts of unequal length, trained with the plain Trainer and with PrunedTrainer; on ranks, started by a test."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import SequentialSampler, Subset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import infobatch
from infobatch.adapters import PerSample, language_loss
from infobatch.integrations.transformers import PrunedTrainer

SIZE, BATCH, ACCUMULATED, VOCABULARY = 17, 3, 4, 20  # the last step of an epoch has two batches, the last one two texts
SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


def texts(size: int = SIZE) -> list[dict[str, Tensor]]:
    """Padded texts of which 2 to 8 tokens are predicted."""
    ids = torch.randint(0, VOCABULARY, (size, 8), generator=torch.Generator().manual_seed(1))
    counts = torch.randint(2, 9, (size,), generator=torch.Generator().manual_seed(0)).tolist()
    return [
        {"input_ids": row, "labels": F.pad(row[:n], (0, 8 - n), value=-100)} for row, n in zip(ids, counts, strict=True)
    ]


def llama() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **SMALL))


def settings(epochs: int = 1, **given: Any) -> TrainingArguments:
    plain = {
        "output_dir": "out",
        "num_train_epochs": epochs,
        "per_device_train_batch_size": BATCH,
        "gradient_accumulation_steps": ACCUMULATED,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant",
    }
    return TrainingArguments(**(plain | given))


class InOrder(Trainer):
    """The plain Trainer, taking the samples in the order of the data set."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return SequentialSampler(self.train_dataset)


def sgd(model: nn.Module) -> Any:
    return torch.optim.SGD(model.parameters(), lr=1.0), None


def by_trainer(model: nn.Module, data: Any, train: infobatch.Pruned, *, args: Any = None, **given: Any) -> Trainer:
    """Train with the plain Trainer on the samples of the first, full epoch, in its order."""
    order = train.plan().indices.tolist()
    assert order != list(range(len(data)))
    plain = InOrder(model, args or settings(), train_dataset=Subset(data, order), optimizers=sgd(model), **given)
    plain.train()
    return plain


def by_pruned(
    model: nn.Module, train: infobatch.Pruned, kind: type[PrunedTrainer] = PrunedTrainer, args: Any = None, **given: Any
) -> PrunedTrainer:
    args = args or settings(train.num_epochs)
    made = kind(model, args, train_dataset=train, optimizers=sgd(model), **given)
    made.train()
    return made


def by_tokens(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> PerSample:
    """Every token of a step has the same influence, as in the Trainer."""
    average = "batch" if num_items_in_batch is None else num_items_in_batch
    return language_loss(outputs.logits, labels, shift=True, average=average)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([one.detach().flatten() for one in model.parameters()])


def assert_close(model: nn.Module, other: nn.Module, start: nn.Module) -> None:
    """The parameters are equal to 1e-5, and so, to 1e-4, is what training has changed."""
    torch.testing.assert_close(flat(model), flat(other), rtol=1e-5, atol=1e-5)
    change = (flat(other) - flat(start)).norm()
    assert change > 1e-2
    assert (flat(model) - flat(other)).norm() < 1e-4 * change


def main() -> None:
    torch.set_num_threads(1)
    os.chdir(sys.argv[1])
    dist.init_process_group("gloo")
    found = {}
    for name, averaged in (("over ranks", True), ("by rank", False)):
        model, train = llama(), infobatch.InfoBatch(texts(16), num_epochs=1)
        args = settings(ddp_backend="gloo", average_tokens_across_devices=averaged)
        made = by_pruned(model, train, args=args, compute_loss_func=by_tokens)
        found[name] = {"weights": flat(model), "scores": train.scores, "is scaled": made.loss_is_scaled_for_ga}
    torch.save(found, f"{dist.get_rank()}.pt")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "slow" / "ranks"))
    from leave import leave

    main()
    leave()
