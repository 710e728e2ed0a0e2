"""State the outcome of a comparison in one plain sentence per method.

>>> from .verdicts import Difference, judge
>>> found = Difference(seeds=(0, 1, 2), mean=-0.1, std=0.46, low=-1.2, high=1.1)
>>> print(answer_of(Facts("infobatch", found, judge(found, 0.3, 0.95), saved=0.35, time_saved=0.27)))
InfoBatch used 35 % fewer samples and 27 % less time than full data; accuracy changed by -0.1 points \
(95 %: -1.2 to +1.1); with 3 seeds a loss of up to 1.2 points cannot be excluded.

Tables, intervals and verdicts are the evidence; the sentence says what they amount to, and no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..format import format_number, percent
from .verdicts import FEWEST, NOT_JUDGED, Difference, Verdict

if TYPE_CHECKING:
    from .comparison import Comparison, Row
    from .tuning import AtBest


@dataclass(frozen=True)
class Facts:
    """Everything the sentence about one method is made of."""

    method: str
    """The label of its row."""
    difference: Difference | None
    """To the baseline, over the seeds both have; None if there is none."""
    verdict: Verdict
    saved: float | None = None
    """The share of the samples of full data that the method did not train on; negative if it used more."""
    time_saved: float | None = None
    """The same for seconds; None if the times cannot be compared."""
    shorter_run: Difference | None = None
    """To full data trained for as many steps as the method took; None if there are no such runs."""
    metric: str = "accuracy, %"
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
        One sentence; a second one compares the method with a shorter run, if there is one.
    """
    name = _capitalize(facts.method)
    start = name if facts.rate is None else f"At its best learning rate ({facts.rate:g}), {name}"
    cost = f"{start} {_describe_cost(facts)}"
    if facts.difference is None or facts.verdict.kind in ("failed", "alone"):
        return f"{cost}; what that does to the {_metric(facts)} is unknown ({_reason(facts.verdict)})."
    sentence = f"{cost}; {_describe_change(facts, facts.difference)}; {_describe_certainty(facts, facts.difference)}."
    return f"{sentence} {_describe_shorter_run(facts, facts.shorter_run)}" if facts.shorter_run else sentence


def answers_of(found: Comparison, best: AtBest | None = None) -> tuple[str, ...]:
    """Answer for every method of a comparison; controls and the baseline get no sentence.

    Args:
        found: The comparison.
        best: Each method at its best learning rate, if several were tried: then the answers are about that.

    Returns:
        One text per method, in the order of the rows.
    """
    return tuple(answer_of(facts) for facts in facts_of(found, best))


def facts_of(found: Comparison, best: AtBest | None = None) -> tuple[Facts, ...]:
    """Collect the facts about every method of a comparison that is not a control."""
    return tuple(
        Facts(
            method=row.label,
            difference=row.difference,
            verdict=row.verdict,
            saved=row.saved,
            time_saved=row.time_saved,
            shorter_run=row.same_steps,
            metric=found.metric,
            baseline=found.against or "full data",
            margin=found.margin,
            interval_level=found.interval_level,
            rate=rate,
        )
        for rate, row in _judged_rows(found, best)
    )


def _judged_rows(found: Comparison, best: AtBest | None) -> Iterator[tuple[float | None, Row]]:
    if best is not None and not best.full_alone and not found.against:
        rows: list[tuple[float | None, Row]] = [(one.rate, one.row) for one in best.rows]
    else:
        rows = [(None, row) for row in found.rows]
    return (pair for pair in rows if pair[1].verdict.kind not in NOT_JUDGED)


# ---- the parts of the sentence -------------------------------------------------------------------------------


def _capitalize(label: str) -> str:
    """Write the method of the paper as the paper does; other labels stay as they are in the table."""
    name = "infobatch"
    is_ours = label.startswith(name) and not label[len(name) : len(name) + 1].isalnum()
    return f"InfoBatch{label[len(name) :]}" if is_ours else label


def _metric(facts: Facts) -> str:
    """``accuracy`` for ``accuracy, %``."""
    return facts.metric.partition(",")[0] or "metric"


def _describe_cost(facts: Facts) -> str:
    """Savings are counted from full data, even if the metric is compared with another row."""
    amounts = [(facts.saved, "fewer", "many", "samples"), (facts.time_saved, "less", "much", "time")]
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
    other = "" if facts.baseline == "full data" else f" compared with {facts.baseline}"
    return f"{_metric(facts)} changed by {_points(found, found.mean, sign='+')} points{other}{_interval(facts, found)}"


def _describe_certainty(facts: Facts, found: Difference) -> str:
    if found.low is None or found.high is None:
        return f"{_count_seeds(found)} no interval can be given, so this may be chance"
    kind = facts.verdict.kind
    if kind == "better":
        return "chance alone does not explain the gain"
    if kind == "worse":
        return f"chance alone does not explain the loss, which is at least {_points(found, -found.high)} points"
    if kind == "lossless":
        return f"a loss of more than {facts.margin:g} points can be excluded"
    if found.low < 0:
        return f"{_count_seeds(found)} a loss of up to {_points(found, -found.low)} points cannot be excluded"
    return f"{_count_seeds(found)} no verdict is given, since {FEWEST} are the fewest that allow one"


def _describe_shorter_run(facts: Facts, found: Difference) -> str:
    """The question that decides whether pruning was worth it: was it better than simply training less?"""
    start = "Compared with a shorter run of equal cost (full data, as many steps),"
    change = f"{start} its {_metric(facts)} was {_points(found, abs(found.mean))} points"
    change += f" {'lower' if found.mean < 0 else 'higher'}{_interval(facts, found)}"
    if found.low is None or found.high is None:
        return f"{change}; {_count_seeds(found)} this may be chance."
    if found.n >= FEWEST and (found.low > 0 or found.high < 0):
        return f"{change}, which chance alone does not explain."
    return f"{change}, which may be chance."


def _reason(verdict: Verdict) -> str:
    return verdict.text.removeprefix("no verdict: ")


def _count_seeds(found: Difference) -> str:
    return f"with {found.n} seeds" if found.n > 1 else "with one seed"


def _interval(facts: Facts, found: Difference) -> str:
    if found.low is None or found.high is None:
        return ""
    low, high = (_points(found, end, sign="+") for end in (found.low, found.high))
    return f" ({percent(facts.interval_level)}: {low} to {high})"


def _points(found: Difference, value: float, sign: str = "") -> str:
    """One decimal, or two if the numbers of this difference are all below 1."""
    largest = max(abs(number) for number in (found.mean, found.low, found.high) if number is not None)
    return format_number(f"{{:{sign}.{1 if largest >= 1 else 2}f}}", value)
