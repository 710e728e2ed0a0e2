"""Instruction tuning: what is predicted, padding, truncation, held-out pairs, models of transformers, and training."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from infobatch.errors import InputError
from infobatch.lab.runs.records import Fact
from infobatch.lab.tasks.catalogue import make_task
from infobatch.lab.tasks.instructions import BYTES, LENGTH, answer_loss
from infobatch.lab.tasks.nested import take
from infobatch.lab.tasks.task import Arrays, Task
from infobatch.lab.train import loop
from infobatch.lab.train.settings import Settings
from infobatch.lab.train.static import prepare

QUICK: dict[str, Any] = {
    "task": "instructions",
    "epochs": 4,
    "batch_size": 16,
    "threads": 1,
    "gallery": 2,
    "device": "cpu",
}


def sums(folder: Path, name: str, count: int, seed: int = 0) -> None:
    draw = random.Random(seed).randrange
    pairs = ((draw(10), draw(1000)) for _ in range(count))
    entries = ({"question": f"{a}+{b}=", "answer": str(a + b)} for a, b in pairs)
    (folder / name).write_text("".join(json.dumps(entry) + "\n" for entry in entries))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sums(tmp_path, "train.jsonl", 70)
    sums(tmp_path, "test.jsonl", 40, seed=1)
    return tmp_path


def made(folder: Path) -> Task:
    return make_task("instructions", str(folder))


def trained(task: Task, **given: Any) -> list[Fact]:
    return list(loop.run(Settings.of({**QUICK, **given}, task.defaults), task=task))


def answers(task: Task, part: str = "train") -> list[tuple[bytes, list[int]]]:
    """Return the prompt and the answer of each sample, read back from the tensors."""
    data = getattr(task, part)
    found = []
    for ids, length, labels in zip(data.inputs["input_ids"], data.inputs["length"], data.labels, strict=True):
        predicted = labels != -100
        assert not predicted[length:].any()
        assert torch.equal(ids[predicted], labels[predicted])
        first = int(predicted.nonzero()[0])
        assert predicted[first:length].all()
        found.append((bytes(ids[:first].tolist()), labels[predicted].tolist()))
    return found


# ---- samples ---------------------------------------------------------------------------------------------


def test_only_answers_are_predicted_and_empty_ones_end_at_once(tmp_path: Path) -> None:
    entries = [{"question": "é?", "answer": "ja"}, {"question": "and then?", "answer": ""}]
    for name in ("train.json", "test.json"):
        (tmp_path / name).write_text(json.dumps(entries))
    task = made(tmp_path)
    expected = [("é?\n".encode(), [*b"ja", BYTES]), (b"and then?\n", [BYTES])]
    assert answers(task) == answers(task, "test") == expected
    assert task.texts is not None
    assert task.texts(0) == "é?\nja"


def test_long_samples_are_cut_and_prompts_without_an_answer_left_out_said_once(tmp_path: Path) -> None:
    lengths = [(3, 3), (3, 2000), (LENGTH - 2, 5), (LENGTH - 1, 5), (4, 4)]
    entries = [{"question": chr(97 + at) * a, "answer": "x" * b} for at, (a, b) in enumerate(lengths)]
    for name in ("train.json", "test.json"):
        (tmp_path / name).write_text(json.dumps(entries))
    with pytest.warns(
        UserWarning, match="6 samples are longer than 512 tokens and are cut. 2 of them are left"
    ) as seen:
        task = made(tmp_path)
    assert len(seen) == 1
    found = answers(task)
    assert [len(prompt) + len(answer) for prompt, answer in found] == [8, LENGTH, LENGTH, 10]
    assert task.texts is not None
    assert [task.texts(at)[0] for at in range(4)] == ["a", "b", "c", "e"]


def test_no_sample_is_left_if_all_prompts_are_too_long(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(json.dumps([{"question": "q", "answer": "a"}]))
    (tmp_path / "test.json").write_text(json.dumps([{"question": "q" * LENGTH, "answer": "a"}]))
    with pytest.raises(InputError, match=r"fewer than 512 tokens in .*test\.json"):
        made(tmp_path)


def test_without_a_test_file_the_same_tenth_is_held_out(tmp_path: Path) -> None:
    sums(tmp_path, "train.jsonl", 50)
    everything = sorted(
        (f"{entry['question']}\n".encode(), [*entry["answer"].encode(), BYTES])
        for entry in map(json.loads, (tmp_path / "train.jsonl").read_text().splitlines())
    )
    with pytest.warns(UserWarning, match=r"no test\.jsonl or test\.json .* 5 of its 50 pairs"):
        task = made(tmp_path)
    torch.manual_seed(7)
    with pytest.warns(UserWarning, match="held out"):
        again = made(tmp_path)
    assert len(answers(task, "test")) == 5
    assert sorted(answers(task) + answers(task, "test")) == everything
    assert answers(again) == answers(task)
    sums(tmp_path, "train.jsonl", 1)
    with pytest.raises(InputError, match="at least 2 pairs"):
        made(tmp_path)


def test_records_tell_data_apart(folder: Path) -> None:
    before = made(folder).source
    assert "train.jsonl sha256:" in before
    assert "test.jsonl sha256:" in before
    sums(folder, "test.jsonl", 41, seed=1)
    assert made(folder).source != before


# ---- loss and padding ------------------------------------------------------------------------------------


def losses_one_by_one(net: torch.nn.Module, data: Any) -> list[torch.Tensor]:
    """Return the losses of the answers' tokens, each sample alone and without padding."""
    found = []
    for ids, length, labels in zip(data.inputs["input_ids"], data.inputs["length"], data.labels, strict=True):
        logits = net({"input_ids": ids[None, :length], "length": length[None]})[0]
        pairs = [(at, int(labels[at + 1])) for at in range(int(length) - 1) if labels[at + 1] != -100]
        found.append(torch.stack([-logits[at].log_softmax(0)[token] for at, token in pairs]))
    return found


def test_padding_changes_neither_losses_nor_the_metric(folder: Path) -> None:
    task = made(folder)
    assert task.make_model is not None
    net, data = task.make_model().eval(), task.test
    assert isinstance(data, Arrays)
    assert len(set(data.inputs["length"].tolist())) > 1
    with torch.no_grad():
        expected = losses_one_by_one(net, data)
        outputs = net(data.inputs)
        loss, score = answer_loss(outputs, data.labels, 0.0)
        padded = {"input_ids": F.pad(data.inputs["input_ids"], (0, 9)), "length": data.inputs["length"]}
        assert net(padded).shape == outputs.shape  # a batch is as long as its longest sample
        few = take(data.inputs, data.inputs["length"].argsort()[:3])
        assert net(few).shape[1] == few["length"].max() < outputs.shape[1]
    metric = task.make_metric()
    metric.update(outputs, F.pad(data.labels, (0, 9), value=-100))
    assert torch.allclose(score, torch.stack([each.mean() for each in expected]), atol=1e-5)
    assert torch.allclose(loss.mean(), torch.cat(expected).mean(), atol=1e-5)
    assert metric.compute() == pytest.approx(float(torch.cat(expected).mean().exp()), rel=1e-5)
    assert not task.metric_info.higher_is_better
    assert task.confidence is not None
    confidence = task.confidence(outputs, data.labels)
    geometric = torch.stack([(-each).exp().prod() ** (1 / len(each)) for each in expected])
    assert torch.allclose(confidence, geometric, atol=1e-6)


def test_labels_are_not_smoothed(folder: Path) -> None:
    with pytest.raises(InputError, match="label_smoothing 0"):
        trained(made(folder), label_smoothing=0.1)


# ---- training --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["full", "infobatch"])
def test_both_feeds_train_alike(folder: Path, method: str) -> None:
    task = made(folder)
    resident, loader = (trained(task, method=method, feed=feed) for feed in ("resident", "loader"))
    for one, other in zip(resident[1:], loader[1:], strict=True):
        for key in set(one) - {"seconds", "time"}:
            assert one[key] == other[key], key


def test_infobatch_a_sieve_and_a_shorter_run_learn(folder: Path) -> None:
    task = made(folder)
    full = trained(task, method="full", epochs=12)
    assert full[1]["metric"] > 2 * full[-1]["metric"] > 2  # the perplexity falls
    pruned = trained(task, method="infobatch", epochs=12)
    assert 0.1 < pruned[-1]["saved"] < 0.5
    sieved = trained(task, method="sieve.hardest:keep=0.5,look=own")
    assert 0.4 < sieved[-1]["saved"] < 0.6
    shorter = trained(task, method="full", epochs=12, steps=20)
    assert shorter[-1]["steps"] == 20
    texts = [each["text"] for each in next(fact for fact in pruned if fact["kind"] == "samples")["most"]]
    assert all("+" in text for text in texts)


def test_a_proxy_for_images_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="look=own"):
        trained(made(folder), method="sieve.hardest:keep=0.5")


def test_dq_chooses_by_features_and_infobatch_trains_on_them(folder: Path) -> None:
    task = made(folder)
    found = trained(task, method="static.dq:share=0.5,then=infobatch", epochs=6)
    assert found[-1]["samples"] < 6 * 35
    settings = Settings.of({**QUICK, "method": "static.dq:share=0.5"}, task.defaults)
    chosen = prepare(settings, task, torch.device("cpu"))
    assert chosen.choice is not None
    assert len(chosen.choice.indices) == len(chosen.task.train) == 35
    rows = chosen.choice.indices.tolist()
    assert answers(chosen.task) == [answers(task)[row] for row in rows]
    again = prepare(settings, made(folder), torch.device("cpu"))
    assert again.choice is not None
    assert again.choice.indices.tolist() == rows
    with pytest.raises(InputError, match="error_norms"):
        prepare(settings.but(method="static.el2n:share=0.5"), task, torch.device("cpu"))
    with pytest.raises(InputError, match="features"):
        prepare(settings, replace(task, features=None), torch.device("cpu"))


def test_features_depend_on_the_seed_alone(folder: Path) -> None:
    task = made(folder)
    assert task.features is not None
    state = torch.get_rng_state()
    found = task.features(0, torch.device("cpu"))
    assert torch.equal(state, torch.get_rng_state())
    assert found.shape[0] == 70
    assert torch.allclose(found.norm(dim=1), torch.ones(70))
    assert torch.equal(found, task.features(0, torch.device("cpu")))
    assert not torch.equal(found, task.features(1, torch.device("cpu")))


@pytest.mark.parametrize("feed", ["resident", "loader"])
def test_samples_are_tested_in_small_batches(folder: Path, feed: str) -> None:
    task = made(folder)
    whole = trained(replace(task, test_batch=0), batch_size=7, method="kakurenbo:ratio=0.6,sure=0.01", feed=feed)
    sizes = []

    class Watched(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            assert task.make_model is not None
            self.net = task.make_model()

        def forward(self, inputs: Any) -> torch.Tensor:
            if not torch.is_grad_enabled():
                sizes.append(len(inputs["length"]))
            outputs: torch.Tensor = self.net(inputs)
            return outputs

    small = trained(
        replace(task, test_batch=7, make_model=Watched), batch_size=7, method="kakurenbo:ratio=0.6,sure=0.01", feed=feed
    )
    assert max(sizes) == 7
    assert sum(sizes) >= 4 * 40
    assert small[-1]["metric"] == pytest.approx(whole[-1]["metric"], rel=1e-4)
    with pytest.raises(InputError, match="test_batch"):
        replace(task, test_batch=-1)


# ---- models of transformers ------------------------------------------------------------------------------


@pytest.fixture
def pretrained(folder: Path) -> Path:
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    words = {word: at for at, word in enumerate(["<s>", "</s>", "<unk>", *"0123456789+="])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    inner.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=20, max_position_embeddings=64, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder


def test_a_model_beside_the_data_is_used_with_its_tokenizer(pretrained: Path) -> None:
    import transformers

    task = made(pretrained)
    assert isinstance(task.train, Arrays)
    assert int(task.train.inputs["input_ids"].max()) < 20
    assert task.train.labels.max() <= 12
    for ids, labels in zip(task.train.inputs["input_ids"], task.train.labels, strict=True):
        assert ids[0] == 0  # <s>, once
        assert labels[labels != -100][-1] == 1  # </s>
        assert (labels == 0).sum() == 0
    assert task.make_model is not None
    net, data = task.make_model().eval(), take(task.train.inputs, slice(0, 8))
    labels = task.train.labels[:8].long()
    model = transformers.AutoModelForCausalLM.from_pretrained(pretrained / "model").eval()
    length = int(data["length"].max())
    is_token = (torch.arange(length) < data["length"][:, None]).long()
    with torch.no_grad():
        expected = model(data["input_ids"][:, :length].long(), attention_mask=is_token, labels=labels[:, :length])
        loss, _ = answer_loss(net(data), labels, 0.0)
    assert torch.allclose(loss.mean(), expected.loss, atol=1e-6)  # the Trainer's loss
    assert task.defaults["lr"] == 2e-5
    assert "config.json sha256:" in task.source
    found = trained(task, method="static.dq:share=0.5,then=infobatch", lr=3e-3)
    assert found[-1]["metric"] < 20


def test_features_are_the_mean_states_of_the_pretrained_model(pretrained: Path) -> None:
    import transformers

    task = made(pretrained)
    assert isinstance(task.train, Arrays)
    assert task.features is not None
    model = transformers.AutoModelForCausalLM.from_pretrained(pretrained / "model").eval()
    found = task.features(0, torch.device("cpu"))
    for row in range(0, 70, 10):
        ids = task.train.inputs["input_ids"][row, : task.train.inputs["length"][row]].long()
        with torch.no_grad():
            mean = model(ids[None], output_hidden_states=True).hidden_states[-1][0].mean(0)
        assert torch.allclose(found[row], mean / mean.norm(), atol=1e-5)


def test_a_folder_without_a_model_is_refused(folder: Path) -> None:
    pytest.importorskip("transformers")
    (folder / "model").mkdir()
    with pytest.raises(InputError, match="save_pretrained"):
        made(folder)
