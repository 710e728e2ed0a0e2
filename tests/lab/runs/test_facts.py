"""What a run tells of itself adds up, and is enough to make it again."""

from __future__ import annotations

import base64
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_task import QUICK, facts, made
from torch.utils.data import TensorDataset

from infobatch import selection
from infobatch.errors import InputError
from infobatch.lab.runs import facts as run_facts
from infobatch.lab.tasks.nets import make_net
from infobatch.lab.tasks.task import Arrays
from infobatch.lab.train import loop, static
from infobatch.lab.train.settings import Settings


def test_what_is_told_adds_up() -> None:
    told = facts()
    epochs = [fact for fact in told if fact["kind"] == "epoch"]
    end, start, samples = told[-1], told[0], told[-2]
    assert [fact["kind"] for fact in told] == ["start"] + ["epoch"] * 8 + ["samples", "end"]
    assert end["samples"] == sum(fact["kept"] for fact in epochs)
    assert end["steps"] == sum(fact["steps"] for fact in epochs)
    assert end["saved"] == pytest.approx(1 - end["samples"] / 1200)
    assert end["saved"] == pytest.approx(epochs[-1]["saved_so_far"])
    assert sum(end["class_size"]) == 150
    assert sum(end["class_kept"]) == end["samples"]
    for fact in epochs:
        assert sum(fact["class_kept"]) == sum(fact["weights"]["counts"]) == fact["kept"]
        total = sum(w * n for w, n in zip(fact["weights"]["values"], fact["weights"]["counts"], strict=True))
        assert total == pytest.approx(150)
        if fact.get("losses"):
            assert sum(fact["losses"]["before"]) == 150
            assert sum(fact["losses"]["after"]) == fact["kept"]
            assert sum(fact["losses"]["rescaled"]) == pytest.approx(150, abs=0.1)
    assert start["settings"] == Settings.of(QUICK).plain()
    assert samples["most"][0]["kept"] == 8
    assert samples["least"][0]["kept"] == min(each["kept"] for each in samples["least"])
    assert end["seconds"]["total"] == pytest.approx(sum(v for k, v in end["seconds"].items() if k != "total"), abs=1e-4)


def test_equal_steps_end_where_they_should() -> None:
    told = facts(method="full", steps=25)
    epochs = [fact for fact in told if fact["kind"] == "epoch"]
    assert [fact["steps"] for fact in epochs] == [10, 10, 5]
    assert told[-1]["steps"] == 25
    assert told[-1]["samples"] == 150 + 150 + 5 * 16
    assert told[-1]["saved"] == pytest.approx(1 - (300 + 80) / 1200)  # less than the full run it stands beside
    assert epochs[-1]["lr"] < 1e-4  # the schedule is pressed into them
    last, end = epochs[-1], told[-1]
    assert end["epochs"] == len(epochs)
    assert (last["kept"], last["effective_size"], last["weights"]) == (80, 80, {"values": [1.0], "counts": [80]})
    assert last["saved"] == pytest.approx(1 - 80 / 150)
    assert last["saved_so_far"] == pytest.approx(1 - (300 + 80) / 450)
    assert (last["growth"], last["noise"]) == (1, 1)  # nothing was pruned
    assert [sum(counts) for counts in zip(*(fact["class_kept"] for fact in epochs), strict=True)] == end["class_kept"]
    with pytest.raises(InputError, match="full"):
        facts(method="infobatch", steps=25)


def test_tests_come_when_asked_for_and_at_the_end() -> None:
    epochs = [fact for fact in facts(eval_every=3) if fact["kind"] == "epoch"]
    assert [fact["epoch"] for fact in epochs if fact["metric"] is not None] == [2, 5, 7]


def test_a_class_without_test_samples_has_no_metric() -> None:
    task = made()
    assert isinstance(task.test, Arrays)
    there = task.test.labels != 1
    end = facts(replace(task, test=Arrays(task.test.inputs[there], task.test.labels[there])))[-1]
    assert end["class_metric"][1] is None
    assert min(end["class_metric"][0], end["class_metric"][2]) > 60


def test_a_static_method_pays_for_its_proxy_and_is_told_of_all_data() -> None:
    static._cache.clear()
    task = made(texts=lambda index: f"row {index}")
    assert isinstance(task.train, Arrays)
    for method in ("static.el2n:share=0.6", "static.craig:share=0.6"):  # the second finds the proxy trained
        told = facts(task, method=method, gallery=150)
        start, end, epochs = told[0], told[-1], [fact for fact in told if fact["kind"] == "epoch"]
        assert (start["size"], end["samples"], end["saved"]) == (150, 8 * 90, pytest.approx(0.4))
        assert end["class_size"] == task.train.labels.bincount().tolist()
        assert sum(end["class_kept"]) == end["samples"]
        assert {(fact["size"], fact["kept"], round(fact["saved"], 9)) for fact in epochs} == {(150, 90, 0.4)}
        assert epochs[-1]["saved_so_far"] == pytest.approx(end["saved"])
        assert end["seconds"]["selection"] > 2 * end["seconds"]["setup"]
        assert end["seconds"]["total"] > end["seconds"]["selection"]
        for each in told[-2]["most"]:
            image = task.train.inputs[each["index"]]
            assert base64.b64decode(each["image"]["bytes"]) == image.numpy().tobytes()
            assert each["label"] == "abc"[task.train.labels[each["index"]]]
            assert each["text"] == f"row {each['index']}"
            assert each["kept"] in (0, 8)
            assert (each["loss"] is None) == (each["kept"] == 0)
        assert sum(each["kept"] for each in told[-2]["most"]) == end["samples"]
    assert facts(task)[-1]["seconds"]["selection"] == 0


@pytest.mark.parametrize(("text", "runs"), [("", 3), (",runs=1", 1), (",runs=5", 5)])
def test_scores_of_a_static_method_are_averaged_over_its_runs(text: str, runs: int) -> None:
    """Against the proxy trained by hand: the samples of the largest mean error."""
    task = made()
    assert isinstance(task.train, Arrays)
    cpu = torch.device("cpu")
    static.prepare(Settings(method="static.el2n:runs=2"), task, cpu)  # whose proxies are no use to the next
    prepared = static.prepare(Settings(method=f"static.el2n:share=0.4{text}"), task, cpu)
    data = TensorDataset((task.train.inputs.float() / 255 - 0.3) / 0.2, task.train.labels)
    given = {name: value for name, value in static.PROXY.items() if name not in ("model", "runs")}
    evidence = selection.gather(lambda: make_net("mlp", (1, 6, 6), 3), data, runs=runs, **given)
    assert evidence.error_norms is not None
    assert evidence.error_norms.shape == (runs, 150)
    assert prepared.choice is not None
    hardest = evidence.error_norms.mean(0).topk(60).indices.sort().values
    assert torch.equal(prepared.choice.indices, hardest)


def test_a_run_can_be_made_again_from_its_record() -> None:
    first = facts()
    second = list(loop.run(Settings.of(first[0]["settings"]), task=made()))
    assert second[-1]["metric"] == first[-1]["metric"]
    assert second[-1]["test_loss"] == first[-1]["test_loss"]


def test_a_commit_is_told_of_a_repository_that_has_this_code_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment that lies inside a person's own repository is not the repository's."""
    package = tmp_path / ".venv" / "telling.py"
    package.parent.mkdir()
    package.touch()
    (tmp_path / "theirs.py").touch()

    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        return subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    git("add", "theirs.py")
    git("commit", "-qm", "first")
    monkeypatch.setattr(run_facts, "__file__", str(package))
    assert run_facts.git_state() is None
    git("add", "-f", ".venv")
    git("commit", "-qm", "second")
    commit = git("rev-parse", "HEAD").strip()
    assert run_facts.git_state() == {"commit": commit, "dirty": False}
    (tmp_path / "new.py").touch()
    assert run_facts.git_state() == {"commit": commit, "dirty": False}
    (tmp_path / "theirs.py").write_text("# changed")
    assert run_facts.git_state() == {"commit": commit, "dirty": True}
    git("checkout", "-q", "--orphan", "empty")
    assert run_facts.git_state() is None
