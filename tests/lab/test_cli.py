"""``infobatch`` as people use it: in a shell, with typing errors, Ctrl-C and a machine that dies."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from launching import Program
from rich.console import Console

from infobatch import methods
from infobatch.cli import main
from infobatch.cli.app import COMMANDS, app
from infobatch.cli.looking import _looks
from infobatch.cli.options import field_docs
from infobatch.cli.screen import EVERY, Bars, Count, Lines, duration
from infobatch.cli.tables import comparison
from infobatch.lab.bench import PLAN, Series, note_look
from infobatch.lab.comparison import compare
from infobatch.lab.recipes import load
from infobatch.lab.records import Run, read, read_many
from infobatch.lab.settings import Settings
from infobatch.lab.training import Training
from infobatch.selection import SELECTORS

pytestmark = pytest.mark.filterwarnings("ignore:.*noise-to-signal:infobatch.InfoBatchWarning")

TOY = """
import os
import time
import torch
from infobatch.lab import training
from infobatch.lab.tasks import Arrays, Task, cross_entropy

def make(loss=cross_entropy):
    draw = torch.Generator().manual_seed(0)
    def some(count):
        inputs = torch.randn(count, 10, generator=draw)
        return Arrays(inputs, (inputs[:, 0] + 0.5 * torch.randn(count, generator=draw) > 0).long())
    suits = {"model": "mlp", "epochs": 8, "batch_size": 20, "lr": 0.05, "threads": 1, "gallery": 2}
    return Task("toy", some(200), some(100), ("no", "yes"), defaults=suits, loss=loss)

def slow():
    pause = float(os.environ.get("PAUSE", 0))
    if pause:  # in a process that will be stopped
        training.CHECKPOINT_SECONDS = 0.0  # after every epoch
    return make(lambda *given: (time.sleep(pause), cross_entropy(*given))[1])

def stuck():
    return make(lambda *given: (time.sleep(60), cross_entropy(*given))[1])
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with a task of our own in it."""
    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(before)
    for name in ("toy", "loaders"):
        sys.modules.pop(name, None)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """A command, run here: exit code, stdout, stderr."""

    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(words))
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def blank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages with nothing on them, for tests that look at none: drawing one takes longer than the runs on it."""
    monkeypatch.setattr("infobatch.report.html", lambda *_, **__: "<!doctype html>")


def start(*words: str) -> Program:
    """A command in a process of its own."""
    process = Program("-m", "infobatch.cli", *words, PAUSE=0.005)
    STARTED.append(process)
    return process


STARTED: list[Program] = []


@pytest.fixture(autouse=True)
def _nothing_is_left_running() -> Iterator[None]:
    """Where a test fails before it ends what it started."""
    yield
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            process.kill()
            process.communicate()


def until(true: Callable[[], Any], process: Program) -> None:
    for _ in range(6000):
        if true():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    raise AssertionError("it never came")


def lines_of(folder: Path) -> int:
    path = folder / "record.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def numbers(run: Run) -> Any:
    """All that a run learnt, without what the clock says and without where it ran."""
    assert run.end is not None
    end = {key: value for key, value in run.end.items() if key not in ("time", "seconds")}
    return end, [{key: value for key, value in epoch.items() if key != "seconds"} for epoch in run.epochs]


# ---- a machine that dies, a person who stops -------------------------------------------------------------


def test_killed_in_mid_run_and_resumed_it_ends_as_an_undisturbed_run(say: Any, place: Path) -> None:
    folder = place / "runs" / "mine" / "infobatch-seed0"
    words = ("train", "--task", "toy:slow", "--epochs", "30", "--name", "mine")
    process = start(*words)
    until(lambda: lines_of(folder) > 7 and (folder / "checkpoint.pt").exists(), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert read(folder).end is None
    code, out, _ = say("train", "--resume", str(folder))
    assert (code, out) == (0, f"Recorded in {folder}\n")
    assert '"resume"' in (folder / "record.jsonl").read_text()
    assert say(*words[:-1], "whole")[0] == 0
    assert numbers(read(folder)) == numbers(read("runs/whole/infobatch-seed0"))


def test_ctrl_c_leaves_a_run_that_goes_on(say: Any, place: Path) -> None:
    folder = place / "runs" / "mine" / "infobatch-seed0"
    process = start("train", "--task", "toy:slow", "--epochs", "60", "--name", "mine", "--json")
    until(lambda: lines_of(folder) > 2, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Once more to end at once" in err
    assert "To go on: infobatch train --resume runs/mine/infobatch-seed0" in err
    assert "Traceback" not in err
    assert "\x1b" not in err
    assert json.loads(out)["finished"] is False
    assert (folder / "checkpoint.pt").exists()
    code, out, err = say("train", "--resume", "runs/mine/infobatch-seed0", "--json")
    assert code == 0, err
    assert json.loads(out)["end"]["epochs"] == 60
    assert not (folder / "checkpoint.pt").exists()


def test_a_comparison_that_is_terminated_goes_on(say: Any, place: Path) -> None:
    words = ("compare", "--task", "toy:slow", "--methods", "full", "infobatch", "--seeds", "2")
    process = start(*words, "--name", "mine")
    until(lambda: lines_of(place / "runs/mine/infobatch-seed0") > 3, process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), err
    assert "To go on: infobatch compare --resume runs/mine" in err
    code, out, err = say("compare", "--resume", "runs/mine", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert told["finished"] is True
    code, out, _ = say(*words, "--name", "whole")
    assert code == 0
    mine, whole = read_many("runs/mine"), read_many("runs/whole")
    assert len(whole) == 6
    assert [numbers(run) for run in mine] == [numbers(run) for run in whole]
    # what a person sees, and what a machine does
    rows = {row["label"]: row for row in told["comparison"]["rows"]}
    assert list(rows) == ["full", "infobatch", "full, steps of infobatch"]
    full = [run.end["metric"] for run in whole if run.end and run.label == "full"]
    assert rows["full"]["mean"] == pytest.approx(np.mean(full))
    shown = f"{np.mean(full):.2f} ± {np.std(full, ddof=1):.2f}"
    assert shown in out
    assert "Report:     runs/whole/report.html" in out
    assert (place / "runs/whole/report.html").read_text().lower().startswith("<!doctype html>")


def test_a_second_signal_ends_even_a_long_call_into_c(place: Path) -> None:
    (place / "toy.py").write_text(TOY.replace("time.sleep(60)", "time.sleep(2), sum(range(10**12))"))
    folder = place / "runs" / "mine" / "infobatch-seed0"
    process = start("train", "--task", "toy:stuck", "--name", "mine")
    until(lambda: lines_of(folder) == 1, process)
    process.send_signal(signal.SIGTERM)
    time.sleep(3)  # inside the sum by now, in which Python sees no signal
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGTERM


def test_two_processes_never_write_to_one_folder_and_the_second_ctrl_c_ends(say: Any, place: Path) -> None:
    folder = place / "runs" / "mine" / "infobatch-seed0"
    process = start("train", "--task", "toy:stuck", "--name", "mine")
    until(lambda: lines_of(folder) == 1, process)
    before = (folder / "record.jsonl").read_bytes()
    for words in (("--resume", str(folder)), ("--task", "toy:stuck", "--name", "mine")):
        code, out, err = say("train", *words)
        assert (code, out) == (2, "")
        assert "a folder no other run writes to" in err
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None  # it waits for the batch at hand
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == -signal.SIGINT  # a shell calls it 130
    assert "Traceback" not in err
    assert (folder / "record.jsonl").read_bytes() == before


def test_a_damaged_checkpoint_is_named(say: Any, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = place / "runs" / "mine" / "infobatch-seed0"
    with monkeypatch.context() as patch:
        patch.setattr(Training, "end", _lights_out)
        patch.setattr("infobatch.lab.training.CHECKPOINT_SECONDS", 0.0)
        assert say("train", "--task", "toy:make", "--name", "mine")[0] == 2
    checkpoint = folder / "checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    code, out, err = say("train", "--resume", str(folder))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert f"mv {checkpoint} {checkpoint}.damaged" in err


def _lights_out(training: Any) -> Any:
    raise OSError("no space left on device")


# ---- settings --------------------------------------------------------------------------------------------


def test_every_setting_is_an_option_with_its_own_words(say: Any) -> None:
    code, out, _ = say("train", "--help")
    text = " ".join(re.sub(r"[│╭╮╰╯─]|--no-\S+", " ", out).split())
    assert code == 0
    for entry in fields(Settings):
        assert f"--{entry.name.replace('_', '-')} " in text
    source = Path(sys.modules[Settings.__module__].__file__ or "").read_text()
    docs = field_docs(Settings)
    assert len(docs) > 12
    for name, doc in docs.items():
        assert f'"""{doc}"""' in source
        assert doc in text, name
    assert "Step: the shares of the run after which the rate falls to a fifth. [default: 0.3 0.6 0.8]" in text


def test_options_become_settings_over_those_of_the_task(say: Any) -> None:
    words = "--lr 0.2 --no-augment --milestones 0.5 0.75 --amp bf16 --label-smoothing 0.1 --compensate lr --seed 4"
    code, out, err = say("train", "--task", "toy:make", "--json", *words.split())
    assert code == 0, err
    expected = Settings(
        task="toy:make", lr=0.2, augment=False, milestones=(0.5, 0.75), amp="bf16", label_smoothing=0.1, seed=4,
        compensate="lr", model="mlp", epochs=8, batch_size=20, threads=1, gallery=2,
    )  # fmt: skip
    assert json.loads(out)["settings"] == expected.plain()


@pytest.mark.usefixtures("blank")
def test_what_the_task_set_is_said(say: Any) -> None:
    _, _, err = say("train", "--task", "toy:make", "--seed", "4", "--name", "mine")
    first = err.splitlines()[0]
    assert first == "Not as by default: epochs 8, batch_size 20, model mlp, lr 0.05, threads 1, gallery 2"
    words = ("compare", "--task", "toy:make", "--methods", "full", "--seeds", "2")
    assert say(*words)[2].count("Not as by default") == 1


@pytest.mark.usefixtures("blank")
def test_a_folder_that_is_there_names_the_command_to_go_on(say: Any) -> None:
    words = ("--task", "toy:make", "--name", "mine")
    assert say("train", *words)[0] == 0
    code, _, err = say("train", *words)
    assert code == 2
    assert "go on: infobatch train --resume runs/mine/infobatch-seed0\n" in err
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


def test_a_comparison_grows_by_seeds_and_methods(say: Any) -> None:
    words = ("compare", "--task", "toy:make", "--no-equal-steps", "--seed", "3", "--seeds", "1", "--name", "mine")
    assert say(*words, "--methods", "infobatch")[0] == 0
    before = read("runs/mine/infobatch-seed3").start["time"]
    code, out, err = say("compare", "--resume", "runs/mine", "--seeds", "2", "--methods", "random", "--json")
    assert code == 0, err
    labels = [(run["label"], run["seed"]) for run in json.loads(out)["runs"]]
    assert labels == [(label, seed) for seed in (3, 4) for label in ("full", "infobatch", "random")]
    assert read("runs/mine/infobatch-seed3").start["time"] == before
    assert say("compare", "--resume", "runs/mine", "--methods", "infobach")[0] == 2
    plan = json.loads(Path("runs/mine/comparison.json").read_text())
    assert plan["methods"] == ["infobatch", "random"]
    told = json.loads(out)["comparison"]
    assert plan["looks"] == told["looks"] == [2]
    assert told["interval_level"] == told["level"] == 0.95
    Path("runs/mine/comparison.json").write_text(json.dumps({**plan, "looks": [2, 5]}))
    out = say("report", "runs/mine/full-seed3", "runs/mine", "-o", "page.html")[1]
    twice = "You have looked 2 times, at 2, 5 seeds, so the intervals are at 98.33 % in place of 95 %"
    assert twice in out
    assert "with intervals at 98.33 %" in out
    assert "none is corrected for the number of methods compared" in out
    assert twice in Path("page.html").read_text()
    code, _, err = say("compare", "--resume", "runs/mine", "--lr", "0.3")
    assert code == 2
    assert "got --lr" in err


def test_looks_at_a_comparison_are_counted() -> None:
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
    assert (_looks(records), _looks(records[:1])) == ((5,), None)
    (folder / PLAN).write_text("damaged")
    assert _looks(records) is None


@pytest.mark.usefixtures("blank")
def test_an_undecided_comparison_says_how_many_seeds(say: Any) -> None:
    words = ("compare", "--task", "toy:make", "--methods", "random_star:ratio=0.8", "--name", "mine")
    code, out, _ = say(*words, "--seeds", "2", "--no-equal-steps", "--margin", "0.001")
    assert code == 0
    (more,) = re.findall(r"about (\d+) more needed", out)
    assert f"infobatch compare --resume runs/mine --seeds {2 + int(more)}" in out


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
        ("compare --seeds 0", "at least one seed"),
        ("compare --task toy:make --level 95", "a level in (0, 1)"),
        ("compare --resume nowhere", "There is no such folder"),
        ("train --resume nowhere", "infobatch train makes one"),
        ("reproduce tabel4", "Did you mean table4"),
        ("report nowhere", "nowhere"),
        ("report", "folders of runs"),
        ("estimate losses.npz", "which is not there"),
        ("tran", 'Did you mean "train"?'),
        ("methods --jsn", "Did you mean --json?"),
    ],
)
def test_bad_input_is_one_line_with_a_hint_and_nothing_else(say: Any, place: Path, words: str, hint: str) -> None:
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
    assert err == "infobatch: the command line needs cyclopts: pip install 'infobatch[lab]'\n"


# ---- reading ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_help_teaches(say: Any, command: Callable[..., Any]) -> None:
    code, out, err = say(command.__name__, "--help")
    assert (code, err) == (0, "")
    text = " ".join(out.split())
    first, *rest = (command.__doc__ or "").strip().splitlines()
    assert first in text
    assert first.endswith(".")
    examples = [line.strip() for line in rest if line.strip().startswith("infobatch ")]
    assert len(examples) == 2
    for example in examples:
        assert example in text
        parsed, bound, _ = app.parse_args(shlex.split(example)[1:])
        assert parsed is command
        assert bound.kwargs or bound.args or command.__name__ in ("methods", "tasks")
    assert "--json" in text


def test_the_commands_of_the_readme_are_commands() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    shown = re.findall(r"^    (infobatch .*)$", readme, re.MULTILINE)
    assert len(shown) > 8
    for line in shown:
        command, bound, _ = app.parse_args(shlex.split(line, comments=True)[1:])
        assert command in COMMANDS
        assert len(bound.arguments) > 0 or command.__name__ == "methods"


def test_the_program_starts_as_a_program() -> None:
    command = [sys.executable, "-m", "infobatch.cli", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    for command in COMMANDS:
        assert command.__name__ in done.stdout
    assert "--install-completion" in done.stdout


def test_methods_and_their_cards(say: Any) -> None:
    code, out, _ = say("methods", "--json")
    told = json.loads(out)
    assert code == 0
    assert [one["name"] for one in told["methods"]] == list(methods.METHODS)
    assert [one["name"] for one in told["static"]] == [f"static.{name}" for name in SELECTORS]
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    table = {row.split("(")[0].strip("| `"): row for row in readme.splitlines() if row.startswith("| `")}
    shown = " ".join(say("methods")[1].split())
    for one in told["methods"]:
        assert all(one.values())
        if one["name"] in table:
            assert f"| {one['leaves_out']} | {one['weights']} |" in table[one["name"]]
        assert one["name"] in shown
    assert len(table) >= 9


def test_tasks_say_whether_their_files_are_there(say: Any, place: Path) -> None:
    (place / "data" / "cifar10").mkdir(parents=True)
    for name in ("train", "test"):
        np.save(place / "data" / "cifar10" / f"{name}_x.npy", np.zeros((10, 32, 32, 3), dtype=np.uint8))
        np.save(place / "data" / "cifar10" / f"{name}_y.npy", np.arange(10))
    code, out, _ = say("tasks", "--data", "data", "--json")
    files = {one["name"]: one["files"] for one in json.loads(out)["tasks"]}
    assert code == 0
    assert files["digits"] == "built in"
    assert files["cifar10"] == "in data/cifar10"
    assert files["imagenet"] == "not found"
    assert "fashion_mnist" in say("tasks")[1]


def test_estimate_from_a_log(say: Any, place: Path) -> None:
    draw = np.random.default_rng(0)
    np.save(place / "losses.npy", np.sort(draw.random((8, 1000)), 0)[::-1].astype(np.float32))
    code, out, err = say("estimate", "losses.npy", "--methods", "random:ratio=0.5", "full", "--json")
    assert code == 0, err
    half, full = json.loads(out)["methods"]
    assert half["saved"] == pytest.approx(0.5 * 6 / 8)  # the first and the last of eight epochs are full
    assert full["saved"] == 0
    code, out, _ = say("estimate", "losses.npy", "--methods", "random:ratio=0.5")
    assert code == 0
    assert "37.5" in out
    told = json.loads(say("estimate", "losses.npy", "--json")[1])
    assert all("unknown" not in one for one in told["methods"])
    assert len(told["unknown"]) == len(set(told["unknown"])) > 0


def test_report_of_recorded_runs(say: Any, place: Path) -> None:
    for method in ("full", "infobatch"):
        say("train", "--task", "toy:make", "--method", method, "--name", "mine")
    code, out, err = say("report", "runs/mine", "-o", "page.html", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert {run["label"] for run in told["runs"]} == {"full", "infobatch"}
    assert "infobatch" in (place / told["report"]).read_text()
    assert "one seed: no verdict" in say("report", "runs/mine", "-o", "page.html")[1]
    out = say("report", "runs/mine", "-o", "page.html", "--against", "infobatch")[1]
    assert "Differences are to infobatch with the same seeds" in out
    page = (place / "page.html").read_text()
    assert "Everything against infobatch with the same seeds." in page
    assert "Difference to infobatch" in page
    assert "Did you mean 'infobatch'?" in say("report", "runs/mine", "-o", "page.html", "--against", "infobach")[2]
    broken = place / "runs" / "mine" / "full-seed0" / "record.jsonl"
    broken.write_text(broken.read_text().replace('"lr":0.05', '"lr":null', 1))
    code, out, err = say("report", "runs/mine", "-o", "page.html", "--json")
    assert code == 0
    told = json.loads(out)
    assert len(told["runs"]) == 1
    assert err == f"infobatch: left out: {told['unreadable'][0]}\n"
    assert "runs/mine/full-seed0/record.jsonl, whose line 1 has settings" in err
    code, _, err = say("report", "runs/mine/full-seed0", "-o", "page.html")
    assert code == 2
    assert "runs/mine/full-seed0/record.jsonl, whose line 1 has settings" in err


@pytest.mark.usefixtures("blank")
def test_narrow_tables_cut_nothing(say: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("compare", "--task", "toy:make", "--methods", "infobatch:ratio=0.5,delta=0.8", "--seeds", "2")
    wide = json.loads(say(*words, "--name", "mine", "--json")[1])["comparison"]["rows"]
    told = {row["label"]: row["verdict"]["text"] for row in wide}
    for width in (60, 80, 120):
        monkeypatch.setattr("infobatch.cli.tables.PLAIN_WIDTH", width)
        code, out, _ = say("report", "runs/mine", "-o", "page.html")
        assert code == 0
        table, _, below = out.partition("\nfull: the baseline\n")
        assert all(len(line) <= width for line in table.splitlines())
        head = next(line for line in table.splitlines() if " n " in line)
        names = "".join("".join(line[: head.index(" n ")].split()) for line in table.splitlines())  # folded, perhaps
        for name, verdict in list(told.items())[1:]:
            assert f"\n{name}: {verdict}" in f"\n{below}"
            assert "".join(name.split()) in names
        assert "…" not in out
        assert "seconds" not in table


@pytest.mark.parametrize("width", [60, 120])
def test_narrow_lists_cut_nothing(say: Any, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr("infobatch.cli.tables.PLAIN_WIDTH", width)
    for command in (("reproduce", "--list"), ("tasks",)):
        code, out, _ = say(*command)
        assert code == 0
        assert "…" not in out
    out = say("reproduce", "figure5")[1]
    assert "…" not in out
    assert "cell (of the highest rate)" in " ".join(out.split())


LOADERS = """
import torch, infobatch
print("a word from a person's own module")
data = infobatch.InfoBatch(torch.utils.data.TensorDataset(torch.randn(60, 3), torch.zeros(60)), 8)
good = infobatch.DataLoader(data, batch_size=10)
bad = torch.utils.data.DataLoader(data, batch_size=10, shuffle=True)
"""


def test_doctor_finds_what_is_wrong_and_exits_with_it(say: Any, place: Path) -> None:
    (place / "loaders.py").write_text(LOADERS)
    code, out, _ = say("doctor", "loaders:good")
    assert code == 0
    assert "Every loss reaches its sample." in out
    code, out, _ = say("doctor", "loaders:bad", "--json")
    assert code == 1
    told = json.loads(out)
    problems = [check for check in told["checks"] if check["status"] == "problem"]
    assert not told["ok"]
    code, out, _ = say("doctor", "loaders:bad")
    assert code == 1
    for check in problems:
        assert f"[problem] {check['name']}: {check['seen']}" in out
        assert check["mend"].splitlines()[0] in out


LOUD = """
import ctypes, os
print("a word")
os.write(1, b"raw bytes")
ctypes.CDLL(None).printf(b"held back by C")
os.system("echo from another process")
"""


@pytest.mark.parametrize("option", ["--json", "--json=true"])
def test_json_stands_alone_whatever_a_module_prints(
    place: Path, capfd: pytest.CaptureFixture[str], option: str
) -> None:
    (place / "toy.py").write_text(TOY + LOUD)
    assert main(["train", "--task", "toy:make", option]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["finished"]
    for words in ("a word", "raw bytes", "held back by C", "from another process"):
        assert words in err
    assert main(["methods"]) == 0
    assert "infobatch" in capfd.readouterr().out  # as before


@pytest.mark.usefixtures("blank")
def test_hooks_by_name(say: Any, place: Path) -> None:
    pytest.importorskip("tensorboard")
    words = ("compare", "--task", "toy:make", "--methods", "infobatch", "--seeds", "1", "--no-equal-steps")
    code, _, err = say(*words, "--name", "mine", "--tensorboard", "board", "--json")
    assert code == 0, err
    assert {path.parent.name for path in place.glob("board/mine/*/events*")} == {"full-seed0", "infobatch-seed0"}


def test_shells_can_complete(say: Any) -> None:
    for shell in ("bash", "zsh", "fish"):
        script = app.generate_completion(shell=shell)  # type: ignore[arg-type]
        for word in ("compare", "methods", "label-smoothing", "onecycle"):
            assert word in script


RECIPE = """
title = "A small table"
claim = "Pruning does no harm."
source = { paper = "002", place = "nowhere" }
needs = { hardware = "a CPU" }
seeds = 2
tolerance = 100.0
unit = "accuracy, %"
[settings]
task = "toy:make"
model = "mlp"
batch_size = 20
lr = 0.05
threads = 1
epochs = 8
[quick]
seeds = 1
settings = { task = "toy:make", model = "mlp", epochs = 8 }
[[cell]]
name = "Full"
settings = { method = "full" }
[[cell]]
name = "InfoBatch"
against = "Full"
expect = "lossless"
settings = { method = "infobatch" }
"""


def test_reproduce_runs_a_recipe_and_finds_its_runs_again(say: Any, place: Path) -> None:
    (place / "small.toml").write_text(RECIPE)
    code, out, err = say("reproduce", "small.toml", "--json")
    assert code == 0, err
    rows = {row["cell"]: row for row in json.loads(out)["rows"]}
    assert {name: row["n"] for name, row in rows.items()} == {"Full": 2, "InfoBatch": 2}
    ours = [run.end["metric"] for run in read_many("runs") if run.end and run.label == "infobatch+loss"]
    assert rows["InfoBatch"]["ours"] == pytest.approx(np.mean(ours))
    before = {path: path.read_bytes() for path in place.glob("runs/**/record.jsonl")}
    code, out, _ = say("reproduce", "small.toml")
    assert code == 0
    assert "Claim: Pruning does no harm." in out
    assert {path: path.read_bytes() for path in place.glob("runs/**/record.jsonl")} == before
    code, out, _ = say("reproduce", "small.toml", "--quick")
    assert "stand-in: toy:make for toy:make" in out
    assert code == 0


def test_reproduce_without_data_shows_what_is_known_first(say: Any) -> None:
    code, out, err = say("reproduce", "table5")
    assert code == 2
    assert "Claim: " in out
    assert f"{load('table5').cells[0].paper:g}" in out
    assert "cifar-100-python" in err
    code, out, _ = say("reproduce", "table8", "--quick")
    assert code == 0
    assert "Nothing of it can run yet: all 2 cells wait for task ffhq." in out
    assert "Quick" not in out


def test_reproduce_measures_and_keeps_it(say: Any, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infobatch.lab.measures.SIZES", {"1.28M": 1000})
    code, out, err = say("reproduce", "table11", "--quick", "--json")
    assert code == 0, err
    rows = {row["cell"]: row for row in json.loads(out)["rows"]}
    (kept,) = (place / "runs" / "table11-quick" / "measurements.jsonl").read_text().splitlines()
    assert rows["numpy sort, 1.28M"]["ours"] == json.loads(kept)["rows"]["numpy sort, 1.28M"] > 0


def test_the_list_of_recipes(say: Any) -> None:
    code, out, _ = say("reproduce", "--list")
    assert code == 0
    names = [line.split()[0] for line in out.splitlines() if line.strip()]
    assert {"table1", "table11", "figure4"} <= set(names)
    assert "waits for" in " ".join(out.split())


def test_numbers_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    runs = []
    for method, metric, took in (("full", 90.0, 10.0), ("random", 89.999, 7.0)):
        for seed in range(3):
            luck = 0.003 * (seed % 2) if method == "random" else 0.0
            end = {"metric": metric + seed + luck, "saved": -0.0, "steps": 10}
            end["seconds"] = {"total": took + seed + 0.5, "setup": 0.5, "selection": 1.0}
            start = {
                "settings": Settings(method=method, seed=seed).plain(),
                "metric": "accuracy, %",
            }
            runs.append(Run(f"{method}{seed}", start, end=end))
    comparison(compare(runs))
    out = capsys.readouterr().out
    assert "-0.00" not in out
    assert "-0.0 " not in out
    assert re.search(r"random +3 +91\.00 ± 1\.00 +0\.0 +10 +8\.0 ± 1\.0 +0\.00 \[0\.00, 0\.00\]", out)
    assert "corrected" not in out  # there is one verdict


# ---- the screen ------------------------------------------------------------------------------------------


def test_durations() -> None:
    assert [duration(one) for one in (0.04, 59.9, 60, 3599, 3660)] == [
        "0.0 s", "59.9 s", "1 min 0 s", "59 min 59 s", "1 h 01 min",
    ]  # fmt: skip


def test_time_left_counts_work_alone() -> None:
    count, settings = Count(4, 80), Settings(epochs=20)
    count.begin(settings, 20)  # there already: never ticks
    count.end()
    assert count.total == 60
    count.begin(settings, 20)  # resumed in its tenth epoch
    assert count.tick(9.5) == 0.5
    assert count.total == 51
    assert count.tick(20.0) == 11
    count.end()
    count.begin(settings.but(method="full", steps=70), 7)  # a control, planned as a whole run
    assert count.total == 38
    assert count.tick(1.0) == 12
    count.end()
    count.begin(settings, 20)
    count.tick(0.1)
    assert count.tick(20.0) == 11 + 7 + 20 == count.total


def test_plain_lines_tell_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, 0.0, 0.0, 0.1, EVERY - 1, EVERY, EVERY + 1])
    screen = Lines(2, 40, now=lambda: next(clock))
    tick = screen.watch(Settings(epochs=20), 20)
    tick(0.1)
    tick(4.0)
    tick(5.0)
    tick(6.0)
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "infobatch, seed 0: epoch 6 of 20, 45.0 s left; run 1 of 2, 1 min 45 s left in all"


def test_bars_on_a_terminal() -> None:
    out = StringIO()
    run = Run("mine", {"settings": Settings().plain(), "metric": "accuracy, %"})
    with Bars(Console(file=out, force_terminal=True, width=100), 2, 80) as screen:
        tick = screen.watch(Settings(method="infobatch:ratio=0.5"), 40)
        tick(10.0)
        screen.progress.refresh()
        screen.done(run)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert "infobatch:ratio=0.5, seed 0" in text
    assert "epoch 11/40" in text
    assert "run 1/2" in text
    assert "infobatch, seed 0: paused in epoch 1" in text


@pytest.mark.parametrize("words", [("train", "--epochs"), ("compare", "--seeds"), ("reproduce", "table1", "--seeds")])
@pytest.mark.parametrize("value", ["2.7", "1e1", "two"])
def test_whole_numbers_are_whole(say: Any, words: tuple[str, ...], value: str) -> None:
    code, out, err = say(*words, value)
    assert (code, out) == (2, "")
    assert f"{words[-1]}: expected a whole number; got {value}." in err
