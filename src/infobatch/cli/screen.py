"""Show the progress of runs: bars with the time left, or plain lines if there is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..lab.compare.naming import name_shorter_run
from ..lab.format import format_number
from ..lab.metrics.metric_info import MetricInfo
from ..lab.runs.fields import looking, seconds
from ..lab.runs.records import Fact, Run, label
from ..lab.train.loop import Tick
from ..lab.train.settings import Settings

EVERY = 15.0
"""Seconds between two lines about the same run."""


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(4.42), duration(75), duration(3 * 3600 + 300)
    ('4.4 s', '1 min 15 s', '3 h 05 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def summarize_run(run: Run, name: str) -> str:
    """Summarize a run in one line."""
    head = f"{name}:"
    if run.end is None:
        return f"{head} paused in epoch {len(run.epochs) + 1}"
    metric, end = run.end["metric"], run.end
    info = MetricInfo.of_record(run.start)
    shown = f"{info.name} {info.value(metric)} {info.unit}".rstrip() if metric is not None else "no finite metric"
    looked = looking(run)
    share, what = (end["saved"], "samples") if looked is None else (end["saved"] - looked, "compute")
    saved = f"{format_number('{:.1f}', 100 * share)} % of the {what} saved"
    return f"{head} {shown}, {saved}, {end['steps']:,} steps, {duration(seconds(run) or 0.0)}"


class Screen(Protocol):
    """Where progress is shown."""

    def __enter__(self) -> Screen: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...
    def watch(self, settings: Settings, epochs: int) -> Tick:
        """Start to show a run of this many epochs."""
        ...

    def done(self, run: Run) -> None:
        """Show that a run has ended, or was already recorded."""
        ...

    def say(self, text: str, style: str = "") -> None: ...


def make_screen(runs: int, epochs: int, *, rates: bool = False) -> Screen:
    """Make a screen on stderr.

    Args:
        runs: How many runs there will be.
        epochs: How many epochs they have in total.
        rates: True if their learning rates differ.
    """
    console = Console(stderr=True)
    if console.is_terminal and not console.is_dumb_terminal:
        return Bars(console, runs, epochs, rates)
    return Lines(runs, epochs, rates)


class Announcement:
    """A hook that says once, when the first run starts, how much there is to do and which settings are not defaults.

    The settings shown are those that all runs of a comparison share.
    """

    def __init__(self, screen: Screen, shared: Settings, how_much: str = "") -> None:
        self.screen, self.shared, self.how_much, self.said = screen, shared, how_much, False

    def __call__(self, fact: Fact) -> None:
        del fact
        if self.said:
            return
        self.said = True
        if self.how_much:
            self.screen.say(self.how_much, style="dim")
        changes = describe_changes(self.shared.plain())
        if changes:
            self.screen.say(f"Settings: {changes}; all others are defaults", style="dim")

    def close(self) -> None:
        pass


def describe_changes(settings: dict[str, Any]) -> str:
    """List the settings that differ from the defaults, except those that identify a run.

    >>> describe_changes({"task": "digits", "epochs": 40, "lr": 0.05, "batch_size": 64})
    'lr 0.05, batch_size 64'
    """
    defaults = Settings().plain()
    identifying = ("task", "data", "method", "seed")
    return ", ".join(
        f"{key} {value}" for key, value in settings.items() if key not in identifying and value != defaults[key]
    )


class Count:
    """Count what is done. A run that is already recorded needs no work, so it lowers the total instead of counting."""

    def __init__(self, runs: int, epochs: int, rates: bool = False) -> None:
        self.runs, self.total, self.rates = runs, float(epochs), rates
        self.finished, self.done_before = 0, 0.0
        self.already_done, self.length, self.ticked = 0, 0, False

    def name(self, settings: Settings) -> str:
        at = f" at {settings.lr:g}" if self.rates else ""
        return f"{name_shorter_run(label(settings))}{at}, seed {settings.seed}"

    def begin(self, settings: Settings, epochs: int) -> None:
        planned = settings.epochs if settings.steps else epochs  # a shorter run was planned with all epochs
        self.total -= planned - epochs
        self.length, self.ticked = epochs, False

    def tick(self, epochs: float) -> float:
        """Return the epochs done in total, without those that a resumed run starts with."""
        if not self.ticked:
            self.ticked, self.already_done = True, int(epochs) if epochs > 1 else 0
            self.total -= self.already_done
        return self.done_before + epochs - self.already_done

    def end(self) -> None:
        if self.ticked:
            self.done_before += self.length - self.already_done
        else:
            self.total -= self.length
        self.finished += 1

    def summarize(self, run: Run) -> str:
        """Summarize a run at its end."""
        return summarize_run(run, self.name(run.settings)) + (
            "" if self.ticked or run.end is None else " (already recorded)"
        )


class Bars:
    """Progress as bars, for a terminal."""

    def __init__(self, console: Console, runs: int, epochs: int, rates: bool = False) -> None:
        self.console, self.count = console, Count(runs, epochs, rates)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[at]}"))
        self.progress = Progress(
            *columns, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console, transient=True
        )
        self.one: TaskID | None = None
        self.all: TaskID | None = self.progress.add_task("total", total=epochs, at="") if runs > 1 else None

    def __enter__(self) -> Bars:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.progress.stop()

    def watch(self, settings: Settings, epochs: int) -> Tick:
        self.count.begin(settings, epochs)
        text = self.count.name(settings)
        self.one = one = self.progress.add_task(text, total=epochs, at=f"epoch 0/{epochs}")

        def tick(done: float) -> None:
            at = f"epoch {min(int(done) + 1, epochs)}/{epochs}"
            self.progress.update(one, completed=done, at=at)
            overall = self.count.tick(done)
            if self.all is not None:
                at = f"run {self.count.finished + 1}/{self.count.runs}"
                self.progress.update(self.all, completed=overall, total=self.count.total, at=at)

        return tick

    def done(self, run: Run) -> None:
        self.count.end()
        if self.one is not None:
            self.progress.remove_task(self.one)
        self.say(self.count.summarize(run))

    def say(self, text: str, style: str = "") -> None:
        self.progress.console.print(text, markup=False, highlight=False, style=style)


class Lines:
    """Progress as lines without control codes, for logs, pipes and CI."""

    def __init__(self, runs: int, epochs: int, rates: bool = False, now: Callable[[], float] = monotonic) -> None:
        self.count, self.now = Count(runs, epochs, rates), now
        self.began = now()

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        del kind, error, at

    def watch(self, settings: Settings, epochs: int) -> Tick:
        self.count.begin(settings, epochs)
        text, began, spoke = self.count.name(settings), self.now(), self.now()

        def tick(done: float) -> None:
            nonlocal spoke
            overall, now = self.count.tick(done), self.now()
            worked = done - self.count.already_done
            if now - spoke < EVERY or not worked:
                return
            spoke = now
            left = f"{duration((now - began) * (epochs - done) / worked)} left"
            if self.count.runs > 1:
                rest = (now - self.began) * max(self.count.total - overall, 0) / max(overall, 1e-9)
                left += f"; run {self.count.finished + 1} of {self.count.runs}, {duration(rest)} left in total"
            self.say(f"{text}: epoch {min(int(done) + 1, epochs)} of {epochs}, {left}")

        return tick

    def done(self, run: Run) -> None:
        self.count.end()
        self.say(self.count.summarize(run))

    def say(self, text: str, style: str = "") -> None:
        del style  # lines have no style
        print(text, file=sys.stderr, flush=True)
