"""``infobatch`` as people read it: help, lists, tables, reports."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shell import TOY

from infobatch import methods
from infobatch.cli import main, tables
from infobatch.cli.app import COMMANDS, app
from infobatch.cli.tables import print_comparison
from infobatch.lab.compare.comparison import compare
from infobatch.lab.compare.naming import name_among
from infobatch.lab.papers.recipe import load
from infobatch.lab.runs.records import Run, read, read_many
from infobatch.lab.train.settings import Settings
from infobatch.selection import SELECTORS


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_help_teaches(say: Any, command: Callable[..., Any]) -> None:
    code, out, err = say(command.__name__, "--help")
    assert (code, err) == (0, "")
    text = " ".join(out.split())
    first, *rest = (command.__doc__ or "").strip().splitlines()
    assert first in text
    assert first.endswith(".")
    examples = [line.strip() for line in rest if line.strip().startswith("infobatch ")]
    assert len(examples) >= 2
    for example in examples:
        assert example in text
        parsed, bound, _ = app.parse_args(shlex.split(example)[1:])
        assert parsed is command
        assert bound.kwargs or bound.args or command.__name__ in ("methods", "tasks")
    assert "--json" in text


def test_the_commands_of_the_readme_are_commands() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    shown = re.findall(r"^    (infobatch .*)$", readme, re.MULTILINE)
    assert shown
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


@pytest.mark.usefixtures("blank", "place")
def test_a_terminal_that_knows_ascii_alone_shows_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii", write_through=True))
    words = "compare --task toy:make --epochs 1 --methods random_star --seeds 2 --no-equal-steps"
    assert main(words.split()) == 0
    assert b" ? " in shown.getvalue()  # for the sign between mean and spread


@pytest.mark.slow
@pytest.mark.parametrize("closed", [pytest.param(">&-", marks=pytest.mark.slow), "<&- >&- 2>&-"])
def test_a_command_whose_streams_are_closed_does_its_work(place: Path, closed: str) -> None:
    words = "train --task toy:make --epochs 1 --name quiet --json"
    command = ["sh", "-c", f'"$0" -m infobatch.cli {words} {closed}', sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert read(place / "runs" / "quiet" / "infobatch-seed0").end is not None


def test_methods_and_their_cards(say: Any) -> None:
    code, out, _ = say("methods", "--json")
    told = json.loads(out)
    assert code == 0
    assert [one["name"] for one in told["methods"]] == list(methods.METHODS)
    assert [one["name"] for one in told["static"]] == [f"static.{name}" for name in SELECTORS]
    shown = " ".join(say("methods")[1].split())
    for one in told["methods"]:
        assert all(one.values())
        assert one["name"] in shown


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
    assert "\neffective size: " in out
    assert "\nlargest noise: " in out
    told = json.loads(say("estimate", "losses.npy", "--json")[1])
    assert all("unknown" not in one for one in told["methods"])
    assert len(told["unknown"]) == len(set(told["unknown"])) > 0


@pytest.mark.slow
def test_estimate_says_which_methods_it_left_out(say: Any, place: Path) -> None:
    np.save(place / "losses.npy", np.random.default_rng(0).random((1, 50), np.float32))
    told = json.loads(say("estimate", "losses.npy", "--json")[1])
    assert told["left_out"]["kakurenbo"] == "needs more than losses"
    tried = {one["method"].partition("(")[0] for one in told["methods"]}
    assert sorted([*tried, *told["left_out"]]) == sorted(methods.METHODS)
    (line,) = (text for text in say("estimate", "losses.npy")[1].splitlines() if text.startswith("Left out: "))
    more = "dynamic_uncertainty, kakurenbo, ies, rcap (needs more than losses)"
    more += "; bls, repb (scores depend on how samples were batched)"
    assert line == f"Left out: saving (the run is too short); {more}."
    assert "Left out" not in say("estimate", "losses.npy", "--epochs", "20", "--methods", "full")[1]
    assert json.loads(say("estimate", "losses.npy", "--methods", "full", "--json")[1])["left_out"] == {}
    (line,) = (text for text in say("estimate", "losses.npy", "--epochs", "20")[1].splitlines() if "Left out" in text)
    assert line == f"Left out: {more}."


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_report_as_for_one_look(say: Any) -> None:
    """Who looked before sees wider intervals, unless one look is asked for."""
    for seed, name in ((seed, name) for seed in range(3) for name in ("full", "random:ratio=0.5")):
        say("train", "--task", "toy:make", "--method", name, "--seed", str(seed), "--name", "mine")
    kept = list(Path("runs/mine").glob("*/record.jsonl"))
    Path("all.jsonl").write_text("".join(path.read_text() for path in kept))
    Path("looks.json").write_text('{"all.jsonl": [2]}')
    assert "instead of 95 %" in say("report", "all.jsonl")[1]
    out = say("report", "all.jsonl", "--one-look")[1]
    assert "[95 % interval]" in out
    assert "only once" in out


@pytest.mark.slow
def test_report_of_recorded_runs(say: Any, place: Path, request: pytest.FixtureRequest) -> None:
    for method in ("full", "infobatch"):
        say("train", "--task", "toy:make", "--method", method, "--name", "mine")
    code, out, err = say("report", "runs/mine", "-o", "page.html", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert {run["label"] for run in told["runs"]} == {"full", "infobatch"}
    assert "infobatch" in (place / told["report"]).read_text()
    assert "one seed: no verdict" in say("report", "runs/mine", "-o", "page.html")[1]
    out = say("report", "runs/mine", "-o", "page.html", "--against", "infobatch")[1]
    assert "compared with infobatch" in out
    page = (place / "page.html").read_text()
    assert re.search(r"(compared with|difference to) infobatch", page, re.IGNORECASE)
    assert "Did you mean 'infobatch'?" in say("report", "runs/mine", "-o", "page.html", "--against", "infobach")[2]
    nowhere = "infobatch: [Errno 2] No such file or directory: '/proc/x'\n"
    assert say("report", "runs/mine", "-o", "/proc/x") == (2, "", nowhere)
    request.getfixturevalue("blank")  # from here on nobody looks at the page
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
    broken.write_text(broken.read_text()[:99])
    code, out, err = say("report", "runs/mine", "-o", "page.html", "--json")
    assert (code, len(json.loads(out)["unreadable"])) == (0, 1)
    assert "runs/mine/full-seed0/record.jsonl, whose line 1 is not a JSON object" in err
    code, out, err = say("report", "runs/mine/infobatch-seed0", str(broken), "-o", "page.html")
    assert (code, out) == (2, "")
    assert "whose line 1 is not a JSON object" in err


COLUMNS = ("method", "n", "accuracy, %", "saved %", "difference")
NAMES = ("full", "sieve.hardest:keep=0.5,look=proxy,net=conv8,then=infobatch", "shorter run (1,200 steps)")


@pytest.mark.parametrize("width", [None, 80, 200])
def test_a_table_in_a_pipe_is_as_wide_as_columns_says_and_breaks_no_word(
    width: int | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if width is not None:
        monkeypatch.setenv("COLUMNS", str(width))
    assert tables.console().width == (width or 120)
    tables.show(COLUMNS, [(name, "5", "93.12 ± 0.20", "31.2", "-0.12 [-0.31, +0.07]") for name in NAMES], COLUMNS[1:])
    tables.show(("method", "about"), [(name, "a long text " * 20) for name in NAMES])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= (width or 120)
    for piece in ("sieve.hardest:", "keep=0.5,", "look=proxy,", "net=conv8,", "then=infobatch", "shorter", "steps)"):
        assert out.count(piece) == 2
    assert (NAMES[1] in out) == ((width or 120) >= 120)


@pytest.mark.usefixtures("blank")
def test_narrow_tables_cut_nothing(say: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("compare", "--task", "toy:make", "--methods", "infobatch:ratio=0.5,delta=0.8", "--seeds", "2")
    wide = json.loads(say(*words, "--name", "mine", "--json")[1])["comparison"]["rows"]
    name_of = name_among(row["label"] for row in wide)
    told = {name_of(row["label"]): row["verdict"]["text"] for row in wide}
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


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, pytest.param(120, marks=pytest.mark.slow)])
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
        assert check["fix"].splitlines()[0] in out


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


@pytest.mark.usefixtures("no_records")
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


@pytest.mark.usefixtures("no_records")
def test_reproduce_without_data_shows_what_is_known_first(say: Any) -> None:
    code, out, err = say("reproduce", "table5")
    assert code == 2
    assert "Claim: " in out
    assert f"{load('table5').cells[0].paper:g}" in out
    assert "cifar-100-python" in err
    code, out, _ = say("reproduce", "table8", "--quick")
    assert code == 0
    assert "all 2 cells wait for task ffhq." in out
    assert "Quick" not in out


@pytest.mark.usefixtures("no_records")
def test_reproduce_measures_and_keeps_it(say: Any, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infobatch.lab.papers.microbench.SIZES", {"1.28M": 1000})
    code, out, err = say("reproduce", "table11", "--quick", "--json")
    assert code == 0, err
    rows = {row["cell"]: row for row in json.loads(out)["rows"]}
    (kept,) = (place / "runs" / "table11-quick" / "measurements.jsonl").read_text().splitlines()
    assert rows["numpy sort, 1.28M"]["ours"] == json.loads(kept)["rows"]["numpy sort, 1.28M"] > 0
    if os.path.exists("/dev/full"):
        (place / "runs" / "table11-quick" / "measurements.jsonl").unlink()
        (place / "runs" / "table11-quick" / "measurements.jsonl").symlink_to("/dev/full")
        code, _, err = say("reproduce", "table11", "--quick", "--json")
        assert (code, "No space left on device: 'runs/table11-quick/measurements.jsonl'" in err) == (2, True), err


@pytest.mark.usefixtures("no_records")
def test_records_that_cannot_be_read_are_told_to_machines_too(say: Any, place: Path) -> None:
    (place / "small.toml").write_text(RECIPE)
    (place / "runs" / "torn").mkdir(parents=True)
    (place / "runs" / "torn" / "record.jsonl").write_text("not JSON\n")
    (place / "missing.toml").write_text(RECIPE.replace('task = "toy:make"\nmodel', 'task = "cifar10"\nmodel'))
    for word in ("--list", "small.toml"):
        _, out, err = say("reproduce", word, "--json")
        (text,) = json.loads(out)["unreadable"]
        assert "runs/torn/record.jsonl, whose line 1" in text
        assert f"infobatch: left out: {text}\n" in err
    code, _, err = say("reproduce", "missing.toml")
    assert code == 2
    assert f"infobatch: left out: {text}\n" in err


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
    print_comparison(compare(runs))
    out = capsys.readouterr().out
    assert "-0.00" not in out
    assert "-0.0 " not in out
    assert re.search(r"random +3 +91\.00 ± 1\.00 +0\.0 +10 +8\.0 ± 1\.0 +0\.00 \[0\.00, 0\.00\]", out)
    assert "corrected" not in out  # there is one verdict
    assert "full+lr" not in out
    start = {**runs[0].start, "settings": Settings(method="full", steps=9, compensate="lr").plain()}
    print_comparison(compare([*runs, Run("control", start, end=runs[0].end)]))
    out = capsys.readouterr().out
    assert "(full+lr, in older records)" in out


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_a_report_judges_as_its_comparison_did(say: Any) -> None:
    words = ("compare", "--task", "toy:make", "--methods", "random", "--no-equal-steps", "--seeds", "2")
    for name, margin in (("mine", "2"), ("yours", "7")):
        assert say(*words, "--name", name, "--margin", margin, "--level", "0.9")[0] == 0

    def judged(*more: str) -> tuple[float, float]:
        told = json.loads(say("report", *more, "--json")[1])["comparison"]
        return told["margin"], told["level"]

    assert judged("runs/mine") == (2.0, 0.9)
    assert judged("runs/mine", "--margin", "1") == (1.0, 0.9)
    assert judged("runs/mine", "runs/yours") == (0.3, 0.9)  # they differ, so neither's
