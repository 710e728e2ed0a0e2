"""State the outcome of a comparison in one plain sentence per method.

>>> from .verdicts import Difference, judge
>>> found = Difference(seeds=(0, 1, 2), mean=-0.1, std=0.46, low=-1.2, high=1.1)
>>> ahead = Difference(seeds=(0, 1, 2), mean=0.2, std=0.4, low=-0.8, high=1.2)
>>> print(answer_of(Facts("infobatch", found, judge(found, 0.3, 0.95), saved=0.35, shorter_run=ahead)))
InfoBatch used 35 % fewer samples than full data and was 0.10 points less accurate (95 % interval of the \
difference: -1.20 to +1.10); a shorter run that cost as much was 0.30 points less accurate than full data, and 3 seeds \
cannot tell whether it or InfoBatch is better.

Tables, intervals and verdicts are the evidence; the sentence says what they amount to, and no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..format import percent
from ..metrics.metric_info import MetricInfo
from .naming import SHORTER_RUN, capitalize, name_rows
from .verdicts import FEWEST, NOT_JUDGED, Difference, Verdict

if TYPE_CHECKING:
    from .comparison import Comparison, Row
    from .tuning import AtBest

SHORTEST_TIMED = 10.0
"""In seconds: of a run shorter than this, the time is mostly that of starting, so nothing is said about it."""


@dataclass(frozen=True)
class Facts:
    """Everything the sentence about one method is made of."""

    method: str
    """The name of its row."""
    difference: Difference | None
    """To the baseline, over the seeds both have; None if there is none."""
    verdict: Verdict
    saved: float | None = None
    """The share of the samples of full data that the method did not train on; negative if it used more."""
    time_saved: float | None = None
    """The same for seconds; None if the times cannot be compared."""
    compute_saved: float | None = None
    """The same for compute, net of looking; None for a method that does not look: its compute goes with samples."""
    shorter_run: Difference | None = None
    """To full data at equal compute; None if there are no such runs."""
    metric: MetricInfo = MetricInfo()  # noqa: RUF009 - frozen
    baseline: str = "full data"
    margin: float = 0.3
    interval_level: float = 0.95
    rate: float | None = None
    """The learning rate it did best at, if several were tried."""


def answer_of(facts: Facts) -> str:
    """Say in plain words what a method saved, what became of the metric, and how certain that is.

    Args:
        facts: The numbers of the method's row.

    Returns:
        One sentence. If there is a shorter run, it says how that one did.
    """
    name = capitalize(facts.method)
    start = name if facts.rate is None else f"At its best learning rate ({facts.rate:g}), {name}"
    cost = f"{start} {_describe_cost(facts)}"
    if facts.difference is None or facts.verdict.kind in ("failed", "alone"):
        return f"{cost}; what that does to the {_metric(facts)} is unknown ({_reason(facts.verdict)})."
    link = ", and" if " and " in cost else " and"
    change = f"{cost}{link} {_describe_change(facts, facts.difference)}{_interval(facts, facts.difference)}"
    shorter = None if facts.baseline.startswith(SHORTER_RUN) else facts.shorter_run
    if shorter is None:
        return f"{change}; {_describe_certainty(facts, facts.difference)}."
    decided = facts.verdict.kind in ("better", "worse", "lossless")
    certain = f"; {_describe_certainty(facts, facts.difference)}" if decided else ""
    return f"{change}{certain}; {_describe_shorter_run(facts, facts.difference, shorter)}."


def answers_of(found: Comparison, best: AtBest | None = None) -> tuple[str, ...]:
    """Answer for every method of a comparison; shorter runs and the baseline get no sentence.

    Args:
        found: The comparison.
        best: Each method at its best learning rate, if several were tried: then the answers are about that.

    Returns:
        One text per method, in the order of the rows.
    """
    return tuple(answer_of(facts) for facts in facts_of(found, best))


def facts_of(found: Comparison, best: AtBest | None = None) -> tuple[Facts, ...]:
    """Collect the facts about every method of a comparison that others are not merely compared with."""
    found, best = name_rows(found, best)
    return tuple(
        Facts(
            method=row.label,
            difference=row.difference,
            verdict=row.verdict,
            saved=row.saved,
            time_saved=row.time_saved if measures_time(row) else None,
            compute_saved=None if row.looking is None else row.compute_saved,
            shorter_run=row.same_cost,
            metric=found.metric_info,
            baseline=found.against or "full data",
            margin=found.margin,
            interval_level=found.interval_level,
            rate=rate,
        )
        for rate, row in _judged_rows(found, best)
    )


def measures_time(row: Row) -> bool:
    """True if the runs of a row are long enough to say how much time was saved."""
    return row.seconds is not None and row.seconds >= SHORTEST_TIMED


def _judged_rows(found: Comparison, best: AtBest | None) -> Iterator[tuple[float | None, Row]]:
    if best is not None and not best.full_alone and not found.against:
        rows: list[tuple[float | None, Row]] = [(one.rate, one.row) for one in best.rows]
    else:
        rows = [(None, row) for row in found.rows]
    return (pair for pair in rows if pair[1].verdict.kind not in NOT_JUDGED)


# ---- the parts of the sentence -------------------------------------------------------------------------------


def _metric(facts: Facts) -> str:
    """The name of the metric, and its direction where lower is better."""
    return facts.metric.name if facts.metric.higher_is_better else f"{facts.metric.name} ({facts.metric.direction})"


def _describe_cost(facts: Facts) -> str:
    """Savings are counted from full data, even if the metric is compared with another row."""
    samples, compute = (facts.saved, "fewer", "many", "samples"), (facts.compute_saved, "less", "much", "compute")
    spent = samples if facts.compute_saved is None else compute
    amounts = [spent, (facts.time_saved, "less", "much", "time")]
    known = [_compare_amount(share, *words) for share, *words in amounts if share is not None]
    if not known:
        return "was trained beside full data"
    (first, link), (last, last_link) = known[0], known[-1]
    if len(known) == 1:
        return f"used {first} {link} full data"
    if link == last_link:
        return f"used {first} and {last} {link} full data"
    return f"used {first} {link} full data and {last}"


def _compare_amount(saved: float, less: str, equal: str, what: str) -> tuple[str, str]:
    """Return "35 % fewer samples" or "as many samples", and the word that links it to full data."""
    rounded = round(100 * saved)
    if rounded == 0:
        return f"as {equal} {what}", "as"
    return f"{abs(rounded)} % {less if rounded > 0 else 'more'} {what}", "than"


def _describe_change(facts: Facts, found: Difference) -> str:
    """For example "was 0.10 points less accurate"; the cost before it names what it is compared with."""
    than, equal_to = ("", "") if facts.baseline == "full data" else _compared_with(facts.baseline)
    return _was(facts, found.mean, than, equal_to, whose="its")


def _compared_with(other: str) -> tuple[str, str]:
    return f" than {other}", f" as {other}"


def _was(facts: Facts, mean: float, than: str = "", equal_to: str = "", whose: str = "") -> str:
    amount = facts.metric.amount(abs(mean))
    is_equal = float(facts.metric.value(abs(mean))) == 0
    if _metric(facts) == "accuracy":
        return f"had the same accuracy{equal_to}" if is_equal else f"was {amount} {_more(mean)} accurate{than}"
    subject = f"{whose} {_metric(facts)} was" if whose else "was"
    return f"{subject} as high{equal_to}" if is_equal else f"{subject} {amount} {_higher(mean)}{than}"


def _more(value: float) -> str:
    return "more" if value > 0 else "less"


def _higher(value: float) -> str:
    return "higher" if value > 0 else "lower"


def _describe_certainty(facts: Facts, found: Difference) -> str:
    seeds, kind, found = _count_seeds(found), facts.verdict.kind, found.gain(facts.metric)
    if kind == "better":
        return "chance alone does not explain the gain"
    if kind == "worse":
        return "chance alone does not explain the loss"
    if kind == "lossless":
        return f"a loss of more than {facts.metric.with_scale(f'{facts.margin:g}')} can be excluded"
    if found.low is None or found.high is None:
        return f"{seeds} cannot tell whether that is chance"
    if found.n < FEWEST or found.low >= 0:
        return f"{seeds} are too few for a verdict"
    return f"{seeds} cannot exclude a loss of up to {facts.metric.amount(-found.low)}"


def _describe_shorter_run(facts: Facts, found: Difference, ahead: Difference) -> str:
    """Say whether the method did better than simply training less, which decides whether it was worth it.

    Args:
        facts: The facts of the method.
        found: The method minus the baseline.
        ahead: The method minus the shorter run.
    """
    start = f"a {SHORTER_RUN} that cost as much"
    if found.seeds == ahead.seeds:  # compared with the baseline, as the method is and as its own row says
        subject = start if _metric(facts) == "accuracy" else f"that of {start}"
        change = f"{subject} {_was(facts, round(found.mean - ahead.mean, 9), *_compared_with(facts.baseline))}"
        name = capitalize(facts.method)  # "the two" would be the shorter run and full data
        apart, better = f"it from {name}", f"whether it or {name} is better"
    else:
        change = f"it {_was(facts, ahead.mean, *_compared_with(start))}"
        apart, better = "the two apart", "which of the two is better"
    is_decided = ahead.n >= FEWEST and ahead.low is not None and ahead.high is not None
    if is_decided and (ahead.low or 0.0) * (ahead.high or 0.0) > 0:
        return f"{change}, and {_count_seeds(ahead)} are enough to tell {apart}"
    return f"{change}, and {_count_seeds(ahead)} cannot tell {better}"


def _reason(verdict: Verdict) -> str:
    return verdict.text.removeprefix("no verdict: ")


def _count_seeds(found: Difference) -> str:
    return {1: "one seed", 2: "two seeds"}.get(found.n, f"{found.n} seeds")


def _interval(facts: Facts, found: Difference) -> str:
    if found.low is None or found.high is None:
        return ""
    low, high = (facts.metric.signed(end) for end in (found.low, found.high))
    return f" ({percent(facts.interval_level)} interval of the difference: {low} to {high})"
