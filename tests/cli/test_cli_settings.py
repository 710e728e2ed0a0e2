"""``infobatch`` as people use it: in a shell, with options and typing errors."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from shell import numbers

from infobatch.cli.inspect_commands import _looks, _series
from infobatch.cli.options import field_docs
from infobatch.lab.runs.many_runs import PLAN, Series, note_look
from infobatch.lab.runs.records import read
from infobatch.lab.train.settings import READ_ONLY, Settings

# ---- settings --------------------------------------------------------------------------------------------


def test_every_setting_is_an_option_with_its_own_words(say: Any) -> None:
    code, out, _ = say("train", "--help")
    text = " ".join(re.sub(r"[│╭╮╰╯─]|--no-\S+", " ", out).split())
    assert code == 0
    offered = [entry.name for entry in fields(Settings) if entry.name not in READ_ONLY]
    for entry in fields(Settings):
        assert (f"--{entry.name.replace('_', '-')} " in text) is (entry.name in offered)
    source = Path(sys.modules[Settings.__module__].__file__ or "").read_text()
    docs = field_docs(Settings)
    assert len(docs) > 12
    for name in offered:
        assert f'"""{docs[name]}"""' in source
        assert docs[name] in text, name
    assert f"{docs['milestones']} [default: 0.3 0.6 0.8]" in text


def test_options_become_settings_over_those_of_the_task(say: Any) -> None:
    words = "--lr 0.2 --no-augment --milestones 0.5 0.75 --amp bf16 --label-smoothing 0.1 --compensate loss --seed 4"
    code, out, err = say("train", "--task", "toy:make", "--json", *words.split())
    assert code == 0, err
    expected = Settings(
        task="toy:make", lr=0.2, augment=False, milestones=(0.5, 0.75), amp="bf16", label_smoothing=0.1, seed=4,
        compensate="loss", model="mlp", epochs=8, batch_size=20, threads=1, gallery=2,
    )  # fmt: skip
    assert json.loads(out)["settings"] == expected.plain()


@pytest.mark.usefixtures("blank")
def test_what_the_task_set_is_said(say: Any) -> None:
    _, _, err = say("train", "--task", "toy:make", "--seed", "4", "--name", "mine")
    first = err.splitlines()[0]
    assert first.startswith("Settings: epochs 8, batch_size 20, model mlp, lr 0.05, threads 1, gallery 2; ")
    words = ("compare", "--task", "toy:make", "--methods", "full", "--seeds", "2")
    assert say(*words)[2].count("Settings: ") == 1


@pytest.mark.usefixtures("blank")
@pytest.mark.parametrize("command", ["train --method full", "compare --methods full --seeds 1"])
@pytest.mark.parametrize("name", ["../beside", "a/b", "..", "/outside"])
def test_a_name_is_that_of_one_folder(say: Any, command: str, name: str) -> None:
    code, _, err = say(*command.split(), "--task", "toy:make", "--name", name)
    assert code == 2
    assert "one folder below --runs" in err
    assert not Path("runs").exists()
    assert not Path("../beside").exists()


@pytest.mark.usefixtures("blank")
def test_settings_of_a_comparison_are_not_those_of_a_control(say: Any) -> None:
    """Though a control may be the first that is left to train."""
    words = ("compare", "--task", "toy:make", "--methods", "infobatch", "--seeds", "1", "--name", "mine")
    count, told, *_ = say(*words)[2].splitlines()
    assert count.startswith("3 runs, at most 24 epochs")
    (control,) = Path("runs/mine").glob("full-*-steps-seed0")
    shutil.rmtree(control)
    code, _, err = say("compare", "--resume", "runs/mine")
    assert code == 0
    assert [line for line in err.splitlines() if line.startswith("Settings: ")] == [told]


@pytest.mark.usefixtures("blank")
def test_a_folder_that_is_there_names_the_command_to_go_on(say: Any) -> None:
    words = ("--task", "toy:make", "--name", "mine")
    assert say("train", *words)[0] == 0
    code, _, err = say("train", *words)
    assert code == 2
    assert ": infobatch train --resume runs/mine/infobatch-seed0\n" in err
    assert say("compare", "--task", "toy:make", "--methods", "full", "--seeds", "1", "--name", "both")[0] == 0
    code, _, err = say("train", "--resume", "runs/both")
    assert code == 2
    assert "This is a comparison: infobatch compare --resume runs/both\n" in err


def test_data_are_no_matter_of_speed(say: Any) -> None:
    out = say("train", "--help")[1]
    assert out.index("Settings") < out.index("--data") < out.index("Where and how fast it runs") < out.index("--feed")


def test_a_run_like_another(say: Any) -> None:
    say("train", "--task", "toy:make", "--name", "first", "--method", "tiers", "--lr", "0.07")
    first = read("runs/first/tiers-seed0")
    say("train", "--like", "runs/first/tiers-seed0", "--name", "second")
    assert numbers(read("runs/second/tiers-seed0")) == numbers(first)
    say("train", "--like", "runs/first/tiers-seed0", "--name", "second", "--seed", "3")
    assert read("runs/second/tiers-seed3").settings == first.settings.but(seed=3)


@pytest.mark.slow
def test_a_comparison_grows_by_seeds_and_methods(say: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("compare", "--task", "toy:make", "--no-equal-steps", "--seed", "3", "--seeds", "1", "--name", "mine")
    with monkeypatch.context() as patch:  # the only page that is read is the last one
        patch.setattr("infobatch.report.html", lambda *_, **__: "<!doctype html>")
        assert say(*words, "--methods", "infobatch")[0] == 0
        before = read("runs/mine/infobatch-seed3").start["time"]
        code, out, err = say("compare", "--resume", "runs/mine", "--seeds", "2", "--methods", "random", "--json")
    assert code == 0, err
    labels = [(run["label"], run["seed"]) for run in json.loads(out)["runs"]]
    assert labels == [(label, seed) for seed in (3, 4) for label in ("full", "infobatch", "random")]
    assert read("runs/mine/infobatch-seed3").start["time"] == before
    assert say("compare", "--resume", "runs/mine", "--methods", "infobach")[0] == 2
    code, _, err = say("compare", "--resume", "runs/mine", "--seeds", "1")
    assert code == 2
    assert "at least the 2 seeds it has; got 1. Leave --seeds out to finish it" in " ".join(err.split())
    plan = json.loads(Path("runs/mine/comparison.json").read_text())
    assert plan["methods"] == ["infobatch", "random"]
    told = json.loads(out)["comparison"]
    assert plan["looks"] == told["looks"] == [2]
    assert told["interval_level"] == told["level"] == 0.95
    Path("runs/mine/comparison.json").write_text(json.dumps({**plan, "looks": [2, 5]}))
    out = say("report", "runs/mine/full-seed3", "runs/mine", "-o", "page.html")[1]
    twice = "after 2, 5 seeds, so the intervals are at 98.33 % instead of 95 %"
    assert twice in out
    assert "[98.33 % interval]" in out
    assert "not corrected" not in out  # random is a control here, so there is one verdict
    assert twice in Path("page.html").read_text()
    code, _, err = say("compare", "--resume", "runs/mine", "--lr", "0.3")
    assert code == 2
    assert "got --lr" in err


@pytest.mark.usefixtures("blank")
def test_a_comparison_at_several_rates(say: Any) -> None:
    words = (
        "compare",
        "--task",
        "toy:make",
        "--epochs",
        "2",
        "--methods",
        "infobatch",
        "--seeds",
        "2",
        "--name",
        "mine",
    )
    assert say(*words, "--no-equal-steps", "--lr", "0.05", "--rates", "0.1")[0] == 0
    code, out, err = say("compare", "--resume", "runs/mine", "--rates", "0.05", "0.2", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert told["at_best"]["rates"] == [0.05, 0.1, 0.2]
    assert [one["row"]["label"] for one in told["at_best"]["rows"]] == ["full", "infobatch"]
    names = {f"{method}{rate}-seed{seed}" for method in ("full", "infobatch") for rate in ("", "-lr=0.1", "-lr=0.2")
             for seed in (0, 1)}  # fmt: skip
    assert {path.name for path in Path("runs/mine").iterdir() if path.is_dir()} == names
    assert read("runs/mine/full-lr=0.2-seed1").settings.lr == 0.2
    assert "infobatch at 0.2, seed 1:" in err
    out = say("report", "runs/mine", "-o", "page.html")[1]
    assert "at its best learning rate" in out
    for wrong, why in (("-1", "lr"), ("0.05", "other than --lr 0.05")):
        code, _, err = say(*words[:-1], "other", "--lr", "0.05", "--rates", wrong)
        assert (code, Path("runs/other").exists()) == (2, False)
        assert why in err


def test_looks_at_a_comparison_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Each number of seeds is a look, but for one seed, which shows no verdict."""
    folder = Path("runs/mine")
    Series(Settings(), ("infobatch",), (0,)).begin(folder)
    looks = []
    for seeds in (1, 2, 2, 5, 5):
        series = replace(Series.load(folder), seeds=tuple(range(seeds)))
        series.save(folder)
        looks.append(note_look(folder))
    assert looks == [(), (2,), (2,), (2, 5), (2, 5)]
    written_before = json.loads((folder / PLAN).read_text())
    del written_before["looks"]
    (folder / PLAN).write_text(json.dumps(written_before))
    assert Series.load(folder).looks == (5,)
    records = [Path("runs/other/full-seed0/record.jsonl"), folder / "full-seed0" / "record.jsonl"]
    assert [_looks(some, _series(some)) for some in (records, records[:1])] == [(5,), None]
    (folder / PLAN).write_text("damaged")
    assert capsys.readouterr().err == ""
    assert _looks(records, _series(records)) is None
    assert f"infobatch: left out: expected a {PLAN} of the lab; got {folder / PLAN}" in capsys.readouterr().err


@pytest.mark.usefixtures("blank")
def test_an_undecided_comparison_says_how_many_seeds(say: Any) -> None:
    words = ("compare", "--task", "toy:make", "--methods", "random_star:ratio=0.8", "--name", "mine")
    code, out, _ = say(*words, "--seeds", "2", "--no-equal-steps", "--margin", "0.001")
    assert code == 0
    (more,) = re.findall(r"about (\d+) more needed", out)
    asked = (
        f"For a verdict on random_star:ratio=0.8, train about {more} more seeds (an estimate from 2; it may take more):"
    )
    assert f"{asked}\n    infobatch compare --resume runs/mine --seeds {2 + int(more)}\n" in out


# ---- bad input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("train --task digts", "Did you mean digits"),
        ("train --task toy:mak", "Did you mean make"),
        ("train --task toy:make --method infobach", "Did you mean infobatch?"),
        ("train --task toy:make --method infobatch:ration=0.5", "Did you mean ratio?"),
        ("train --task toy:make --model mpl", "Did you mean mlp?"),
        ("train --task toy:make --optimizer smgd", "Did you mean sgd?"),
        ("train --task toy:make --epoch 3", "Did you mean --epochs?"),
        ("train --schedule cosin", 'Choose from: "onecycle", "cosine"'),
        ("train --lr fast", 'unable to convert "fast" into float'),
        ("train --epochs 0", "epochs"),
        ("compare --task toy:make --methods infobatch randm", "Did you mean random"),
        ("compare --task toy:make --optimizer smgd", "Did you mean sgd?"),
        ("compare --seeds 0", "1 to 1,000,000 seeds"),
        ("compare --seeds 1000000000", "1 to 1,000,000 seeds"),
        ("train --task toy:make --device meta", "an available device; got 'meta'"),
        ("compare --task toy:make --level 95", "a level in (0, 1)"),
        ("compare --resume nowhere", "There is no such folder"),
        ("train --resume nowhere", "infobatch train creates one"),
        ("reproduce tabel4", "Did you mean table4"),
        ("reproduce table4 --list", "a recipe or --list"),
        ("reproduce --list --runs nowhere", "expected a folder of runs; got nowhere"),
        ("report nowhere", "nowhere"),
        ("report", "folders of runs"),
        ("estimate losses.npz", "which does not exist"),
        ("estimate folder.npy", "folder.npy, which is not a file"),
        ("tran", 'Did you mean "train"?'),
        ("methods --jsn", "Did you mean --json?"),
    ],
)
def test_bad_input_is_one_line_with_a_hint_and_nothing_else(say: Any, place: Path, words: str, hint: str) -> None:
    (place / "folder.npy").mkdir()
    code, out, err = say(*shlex.split(words))
    assert (code, out) == (2, "")
    assert hint in err
    assert err.startswith("infobatch: ")
    assert "Traceback" not in err
    assert [path.name for path in place.rglob("*") if path.is_file() and path.suffix != ".pyc"] == ["toy.py"]


def test_missing_data_names_layouts_and_where_to_get_them(say: Any) -> None:
    code, _, err = say("train", "--task", "cifar10", "--data", "nowhere")
    assert code == 2
    assert "cifar-10-batches-py" in err
    assert "torchvision.datasets.CIFAR10" in err


def test_without_the_extra_it_says_how_to_get_it(say: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("infobatch.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cyclopts", None)
    code, out, err = say("methods")
    assert (code, out) == (2, "")
    assert err.startswith("infobatch: the command line needs cyclopts: pip install '.[lab]'")
    assert err.count("\n") == 1


NO_LOCKS = """
import os, sys
import torch
sys.modules["fcntl"] = None
del os.register_at_fork
import infobatch, infobatch.selection
from infobatch.cli import main
sys.exit(main(["methods"]))
"""


@pytest.mark.slow
def test_where_there_are_no_locks_of_posix_it_says_so() -> None:
    """The core is imported all the same."""
    done = subprocess.run([sys.executable, "-c", NO_LOCKS], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("infobatch: expected a POSIX system")
    assert f"got {sys.platform}. " in done.stderr
    assert done.stderr.count("\n") == 1


WHOLE = [
    ("train", "--epochs"),
    ("compare", "--seeds"),
    ("reproduce", "table1", "--seeds"),
    ("estimate", "losses.npy", "--epochs"),
    ("estimate", "losses.npy", "--seeds"),
    ("doctor", "train:loader", "--epochs"),
    ("doctor", "train:loader", "--limit"),
]


@pytest.mark.parametrize("words", WHOLE)
@pytest.mark.parametrize("value", ["2.7", "1e1", "two"])
def test_whole_numbers_are_whole(say: Any, words: tuple[str, ...], value: str) -> None:
    code, out, err = say(*words, value)
    assert (code, out) == (2, "")
    assert f"{words[-1]}: expected a whole number; got {value}." in err
