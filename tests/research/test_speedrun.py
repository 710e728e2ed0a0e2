"""The speedrun: what a budget buys, what all methods see, its queue, and its summary. With batches of 32 images."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.testing
from torch.utils.flop_counter import FlopCounterMode

from infobatch.sieve import adaptive

FOLDER = Path(__file__).resolve().parents[2] / "research" / "speedrun"
sys.path.insert(0, str(FOLDER))

import data as images  # noqa: E402
import jobs  # noqa: E402
import nets  # noqa: E402
import speedrun  # noqa: E402
import summary  # noqa: E402
import training  # noqa: E402

SIZE = 32
METHODS = [
    "full",
    "random_rows(keep=0.5)",
    "hardest(keep=0.5)",
    "lot(keep=0.7)",
    "adaptive()",
    "adaptive(threshold=0.4, every=2)",
    "selective_backprop() own",
    "below_mean(keep=0.6) own",
    "small_loss(keep=0.8)",
]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (images, nets, speedrun, training):
        monkeypatch.setattr(module, "BATCH", SIZE)
    limit = torch._dynamo.config.recompile_limit
    yield
    torch._dynamo.config.recompile_limit = limit


@pytest.fixture(scope="module")
def made() -> speedrun.Made:
    return speedrun.Made(torch.device("cpu"))


def job_of(method: str, *words: str) -> argparse.Namespace:
    own = ["--look", "own"] if method.endswith(" own") else []
    small = ["--widths", "6", "8", "8", "--proxy", "4", "6", "6"]
    return speedrun.parse(["--device", "cpu", "--method", method.removesuffix(" own"), *own, *small, *words])


def begin(made: speedrun.Made, job: argparse.Namespace, seed: int = 0) -> training.Run:
    data = images.Data(images.make_up(10, 330), torch.device("cpu"), torch.float32)
    return training.Run(job, seed, data, *speedrun.learners(job, data, made))


@pytest.mark.parametrize("method", METHODS)
def test_a_run_stops_when_its_budget_is_spent_on_flops_that_torch_counts_too(made: speedrun.Made, method: str) -> None:
    run = begin(made, job_of(method, "--budget", "3"))
    with FlopCounterMode(display=False) as counter:
        run.train()
    look, counting, of_look = None if run.sieve is None else run.sieve.look, 0.0, 0.0
    if look is not None:  # counting its FLOPs takes a look, and a step on the batch or, of the model, on 8 rows
        flops = look._flops  # type: ignore[attr-defined]
        of_look = flops.step if look._rows_trained else flops  # type: ignore[attr-defined]
        counting = SIZE * flops + (SIZE if look._rows_trained else 8) * flops.step  # type: ignore[attr-defined]
    assert counter.get_total_flops() - counting == pytest.approx(run.spent, rel=1e-9)

    largest_step = SIZE * (run.flops + of_look)
    assert run.budget <= run.spent < run.budget + largest_step
    assert run.spent / run.flops / len(run.data) == pytest.approx(3, abs=largest_step / run.flops / len(run.data))


def test_infobatch_runs_for_its_epochs_and_counts_what_it_keeps(made: speedrun.Made) -> None:
    run = begin(made, job_of("infobatch", "--epochs", "8"))
    with FlopCounterMode(display=False) as counter:
        run.train()
    assert run.train_data is not None
    assert [epoch.epoch for epoch in run.train_data.history] == list(range(8))
    assert run.kept == sum(epoch.kept for epoch in run.train_data.history) < 8 * len(run.data)
    assert counter.get_total_flops() == pytest.approx(run.spent, rel=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_all_methods_see_the_same_images(made: speedrun.Made, method: str) -> None:
    run = begin(made, job_of(method, "--budget", "3"), seed=5)
    all_rows = run.data.epochs(torch.Generator().manual_seed(5))
    source = run.batches()
    for _ in range(20):  # two epochs
        x, y, indices = next(all_rows)
        some_x, some_y, some, *_ = next(source)
        at = [indices.tolist().index(one) for one in some.tolist()]
        assert torch.equal(some_x, x[at])
        assert torch.equal(some_y, y[at])
        run.reduce(torch.rand(len(some_y)), some)  # which an adaptive method waits for


def test_a_seed_decides_all_of_a_run_whatever_ran_before(made: speedrun.Made) -> None:
    def weights(seed: int, warm: str) -> list[torch.Tensor]:
        if warm:
            begin(made, job_of(warm, "--budget", "1"), seed).warm_up()
        run = begin(made, job_of("hardest(keep=0.5)", "--budget", "1"), seed)
        run.train()
        return [one.clone() for one in run.model.net.state_dict().values()]

    first, other, again = weights(0, ""), weights(1, "hardest(keep=0.5)"), weights(0, "adaptive(every=2)")
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert not all(torch.equal(one, two) for one, two in zip(first, other, strict=True))


COMPILED = ["full", "hardest(keep=0.5)", "adaptive(threshold=0.4, every=2)", "selective_backprop() own"]


@pytest.mark.slow
@pytest.mark.parametrize("ahead", ["--ahead", "--no-ahead"])
@pytest.mark.parametrize("method", COMPILED)
def test_nothing_is_compiled_in_a_run_that_is_timed(monkeypatch: pytest.MonkeyPatch, method: str, ahead: str) -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    compiling = torch.compile
    monkeypatch.setattr(torch, "compile", lambda *args, **kwargs: compiling(*args, **kwargs, backend=counter))
    torch._dynamo.config.recompile_limit = 64
    made = speedrun.Made(torch.device("cpu"))
    job = job_of(method, ahead, "--budget", "2", "--compile", "--dtype", "bfloat16")
    begin(made, job).warm_up()
    warm = counter.frame_count
    # two sizes; a model that looks, or a proxy that looks and that trains
    assert warm == {"full": 1, "selective_backprop() own": 3}.get(method, 4)
    for seed in (0, 1):
        run = begin(made, job, seed)
        run.train()
        if run.sieve is not None:
            assert run.kept < run.steps * SIZE
    assert counter.frame_count == warm


def test_networks_are_shared_by_methods_with_batches_of_other_sizes(made: speedrun.Made) -> None:
    full, half, lot = (begin(made, job_of(method)) for method in ("full", "hardest(keep=0.5)", "lot(keep=0.7)"))
    assert full.model is half.model is lot.model
    assert half.sieve is not None
    assert lot.sieve is not None
    assert half.sieve.look.net is lot.sieve.look.net  # type: ignore[union-attr]
    assert full.model.sizes >= {SIZE, SIZE // 2, 22}


@pytest.mark.parametrize("method", ["selective_backprop() own", "selective_backprop()", "small_loss(keep=0.8)"])
def test_methods_for_a_part_of_the_run_know_how_many_steps_it_has(made: speedrun.Made, method: str) -> None:
    run = begin(made, job_of(method, "--budget", "6"))
    run.train()
    assert run.sieve is not None
    assert run.sieve.num_steps is not None
    assert abs(run.steps - run.sieve.num_steps) <= 1


def lay_out(folder: Path, classes: int) -> None:
    folder.mkdir(parents=True)
    for name, array in images.make_up(classes, 330).items():
        np.save(folder / f"{name}.npy", array.numpy())


def start(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> list[dict[str, Any]]:
    shared = ["--data", str(folder), "--records", str(folder / "records.jsonl"), "--device", "cpu"]
    small = ["--widths", "6", "8", "8", "--proxy", "4", "6", "6", "--budget", "1"]
    monkeypatch.setattr(sys, "argv", ["speedrun.py", *shared, *small, *words])
    with pytest.raises(SystemExit) as ended:
        speedrun.main()
    assert ended.value.code in (0, None), ended.value.code
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def test_a_queue_is_shared_and_leaves_out_what_is_done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lay_out(tmp_path / "cifar10", 10)
    lay_out(tmp_path / "mine", 7)
    queue = tmp_path / "queue.txt"
    queue.write_text("# a comment\n--seeds 0-1\n\n--method 'hardest(keep=0.5)' --dataset mine\n")
    records = start(monkeypatch, tmp_path, "--jobs", str(queue))
    assert [(one["dataset"], one["label"], one["seed"]) for one in records] == [
        ("cifar10", "full", 0),
        ("cifar10", "full", 1),
        ("mine", "hardest(keep=0.5), proxy 4", 0),
    ]
    assert records == start(monkeypatch, tmp_path, "--jobs", str(queue))  # all are taken

    for taken in tmp_path.glob("*.claim"):
        taken.unlink()
    queue.write_text(queue.read_text().replace("0-1", "0-2"))
    assert [one["seed"] for one in start(monkeypatch, tmp_path, "--jobs", str(queue))[3:]] == [2]


def sections(folder: Path, text: str) -> list[list[jobs.Line]]:
    queue = folder / "queue.txt"
    queue.write_text(text)
    return jobs.read_jobs(queue, lambda words: speedrun.parse([*words, "--records", str(folder / "records.jsonl")]))


def test_two_processes_never_take_the_same_run(tmp_path: Path) -> None:
    lines = sections(tmp_path, "--seeds 0-3\n--seeds 0-2 --method 'adaptive()'\n")
    holders = [jobs.Claims(tmp_path / "queue.txt") for _ in range(2)]
    one, other = (jobs.open_runs(lines, (1, 1), claims) for claims in holders)
    taken = [next(process) for process in (one, other, other, one, other, one, one)]
    assert sorted((job.method, seed) for job, _, seed in taken) == sorted(
        [*(("full", seed) for seed in range(4)), *(("adaptive()", seed) for seed in range(3))]
    )
    assert not [*one, *other]
    assert holders[0].refused + holders[1].refused == 7

    holders[0].close()  # a process that ends, in whatever way
    left = [(job.method, seed) for job, _, seed in jobs.open_runs(lines, (1, 1), holders[1])]
    assert left == [(job.method, seed) for job, _, seed in (taken[0], taken[3], taken[5], taken[6])]
    holders[1].close()


def test_claims_of_a_process_that_was_killed_are_void(tmp_path: Path) -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import jobs, pathlib; path = pathlib.Path(sys.argv[1]); "
    )
    script += "print(jobs.Claims(path).take(3, 0), flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", script, str(tmp_path / "queue.txt")]
    claims = jobs.Claims(tmp_path / "queue.txt")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        assert not claims.take(3, 0)
        process.kill()
    assert claims.take(3, 0)
    claims.close()


def test_processes_begin_at_different_lines_of_a_section(tmp_path: Path) -> None:
    lines = sections(tmp_path, "--seeds 0\n--seeds 1\n--seeds 2\n--seeds 3\n\n# second\n--seeds 8\n--seeds 9\n")
    assert [len(section) for section in lines] == [4, 2]

    def order(worker: str) -> list[int]:
        claims = jobs.Claims(tmp_path / worker.replace("/", "of"))
        seeds = [seed for *_, seed in jobs.open_runs(lines, jobs.parse_worker(worker), claims)]
        claims.close()
        return seeds

    assert order("1/1") == order("1/2") == [0, 1, 2, 3, 8, 9]
    assert order("2/2") == [2, 3, 0, 1, 9, 8]
    assert order("4/4") == [3, 0, 1, 2, 9, 8]
    for text in ("0/2", "3/2", "2", "a/2"):
        with pytest.raises(ValueError, match=r"expected|invalid literal"):
            jobs.parse_worker(text)


def test_no_run_begins_that_would_not_end_in_time() -> None:
    times = iter([0.0, 100.0, 130.0, 300.0, 440.0])
    clock = jobs.Clock(10, now=lambda: next(times))
    assert [clock.is_over() for _ in range(4)] == [False, False, False, True]  # 440 + 170 > 600


def test_minutes_end_a_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lay_out(tmp_path / "cifar10", 10)
    assert len(start(monkeypatch, tmp_path, "--seeds", "0-4", "--minutes", "0")) == 1


def test_a_torn_record_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out(tmp_path / "cifar10", 10)
    queue = tmp_path / "queue.txt"
    queue.write_text("--seeds 0-1\n")
    whole = start(monkeypatch, tmp_path, "--seeds", "0")[0]
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps(whole) + "\n" + json.dumps({**whole, "seed": 1})[:-40])
    monkeypatch.setattr(sys, "argv", [*sys.argv[:-2], "--jobs", str(queue)])
    with pytest.raises(SystemExit):
        speedrun.main()
    lines = path.read_text().splitlines()
    assert len(lines) == 3  # the torn one keeps its line
    assert [json.loads(lines[at])["seed"] for at in (0, 2)] == [0, 1]
    assert f"{path}, line 2: left out" in capsys.readouterr().err
    assert len(summary.read([path])) == 2


def test_without_a_gpu_a_cpu_must_be_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("CUDA error: MPS server is not ready\nmore")

    monkeypatch.setattr(torch, "ones", fails)
    monkeypatch.setattr(sys, "argv", ["speedrun.py", "--data", str(tmp_path)])
    with pytest.raises(
        SystemExit, match=r"CUDA does not work: CUDA error: MPS server is not ready\nRehearse with --tiny"
    ):
        speedrun.main()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    small, asked, given = (speedrun.parse(words) for words in (["--tiny"], ["--device", "cpu"], []))
    assert (small.device, small.dtype, small.compile) == (asked.device, asked.dtype, asked.compile)
    assert (given.device, given.dtype, given.compile) == ("cuda", "float16", True)


def test_a_bad_line_is_seen_before_the_first_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    queue = tmp_path / "queue.txt"
    queue.write_text("--seeds 0\n--method 'hardst(keep=0.5)'\n")
    monkeypatch.setattr(sys, "argv", ["speedrun.py", "--jobs", str(queue)])
    with pytest.raises(ValueError, match=r"such as hardest\(keep=0.5\) of .*; got hardst"):
        speedrun.main()


def fail(
    monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str], queue: str
) -> tuple[list[int], str, Any]:
    """Return the seeds that ran, what was printed, and how the process ended."""
    lay_out(folder / "cifar10", 10)
    (folder / "queue.txt").write_text(queue)
    records = folder / "records.jsonl"
    records.touch()
    words = ["--data", str(folder), "--records", str(records), "--jobs", str(folder / "queue.txt"), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["speedrun.py", *words, "--budget", "0.5", "--widths", "6", "8", "8"])
    with pytest.raises(SystemExit) as ended:
        speedrun.main()
    seeds = [json.loads(line)["seed"] for line in records.read_text().splitlines()]
    return seeds, "".join(capsys.readouterr()), ended.value.code


def test_the_rest_of_a_queue_is_run_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = jobs.Claims(tmp_path / "queue.txt")
    assert other.take(2, 4)
    seeds, printed, code = fail(monkeypatch, tmp_path, capsys, "--dataset absent\n--seeds 3-4\n--dataset absent\n")
    assert seeds == [3]
    assert "no data under" in printed
    assert "1 runs were taken by other processes" in printed
    assert code == "2 runs failed"
    assert other.take(1, 0)  # what failed may be tried again
    other.close()


def test_a_process_ends_after_two_failures_in_a_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds, printed, code = fail(monkeypatch, tmp_path, capsys, "--dataset absent --seeds 0-3\n--seeds 3\n")
    assert seeds == []
    assert "stopped after 2 failures in a row" in printed
    assert code == "2 runs failed"


@pytest.mark.parametrize("name", ["queue.txt", "alone.txt"])
def test_every_line_of_the_queues_in_the_repository_can_be_parsed(name: str) -> None:
    found = [job for section in jobs.read_jobs(FOLDER / name, speedrun.parse) for _, job in section]
    assert {training.label(job) for job in found} >= {"full", "hardest(keep=0.5)", repr(adaptive())}
    runs = [(*training.identity(job, seed).values(),) for job in found for seed in job.seeds]
    assert len(set(runs)) == len(runs)


def record(label: str, seed: int, accuracy: float, cost: float, **extra: Any) -> dict[str, Any]:
    same = {"dataset": "cifar10", "holdout": 0, "format": 2, "alone": False, "seconds": 9.0, "kept_share": 1.0}
    return {**same, "label": label, "seed": seed, "accuracy": accuracy, "cost_epochs": cost, "budget": cost, **extra}


def test_the_summary_pairs_seeds_at_equal_cost_and_with_the_longest_run() -> None:
    records = [record("full", seed, accuracy, 36.4) for seed, accuracy in enumerate((96.0, 96.2, 96.1))]
    records += [record("full", seed, accuracy, 24.0) for seed, accuracy in enumerate((95.6, 95.8, 95.9))]
    records += [record("sieve", seed, accuracy, 24.3) for seed, accuracy in enumerate((96.0, 96.0, 96.0))]
    records += [record("sieve", 0, 10.0, 24.3, alone=True, seconds=4.0), record("full", 0, 1.0, 36.4, alone=True)]
    records += [record("sieve", 1, 10.0, 30.0)]  # a repetition
    lines = [line for line in summary.summarize(records, "accuracy") if line.split()[0] == "sieve"]
    line, of_another_budget = lines
    # t = 4.303 with two degrees of freedom: (0.4, 0.2, 0.1) and (0.0, -0.2, -0.1)
    assert "equal cost +0.23 [-0.15, +0.61] n=3" in line
    assert "longest -0.10 [-0.35, +0.15] n=3" in line
    assert "4.0 s" in line
    assert line.endswith("of its seconds 0.444, of its compute 0.668")
    assert "of its" not in of_another_budget
    assert "equal cost" not in of_another_budget


def test_records_of_the_first_script_are_read_and_kept_apart() -> None:
    old = summary.read(sorted((FOLDER / "records").glob("*.jsonl")))
    old = [one for one in old if "format" not in one]
    assert len(old) == 24
    new = [{**one, "format": 2, "accuracy_tta": one["accuracy_tta"] - 1} for one in old]
    lines = summary.summarize([*old, *new], "accuracy_tta")
    assert [line for line in lines if not line.startswith(" ")][3:] == [
        "cifar10, first script",
        "cifar10",
        "cifar100, first script",
        "cifar100",
    ]
    assert lines.count(next(line for line in lines if "equal cost +0.27 [-2.71, +3.26] n=2" in line)) == 1
    assert sum("equal cost +0.27 [-2.71, +3.26] n=2" in line for line in lines) == 2
