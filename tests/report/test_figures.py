"""Figures of the page: their numbers against the records, their drawings against their numbers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from facts import CLASSES, facts, made, run
from reading import drawing, lines_of, section, table

from infobatch import report
from infobatch.lab.runs.records import Run
from infobatch.lab.train.settings import Settings
from infobatch.report import series
from infobatch.report.figures import figure, frontier

SMALL: dict[str, Any] = {"epochs": 6, "size": 150}


@pytest.fixture
def page(drawn: str) -> str:
    return drawn


def of(runs: list[Run], method: str) -> list[Run]:
    return [one for one in runs if one.label == method]


def ends(runs: list[Run], method: str) -> list[dict[str, Any]]:
    return [one.end for one in of(runs, method) if one.end is not None]


def test_curves_are_means_over_runs(runs: list[Run], page: str) -> None:
    rows = [row for row in table(page, "pruned") if row["method"] == "infobatch"]
    left = np.array([[fact["size"] - fact["kept"] for fact in one.epochs] for one in of(runs, "infobatch")])
    assert [int(row["epoch"]) for row in rows] == list(range(1, 31))
    assert [float(row["samples"]) for row in rows] == pytest.approx(left.mean(0), rel=1e-5)
    assert [float(row["std"]) for row in rows] == pytest.approx(left.std(0, ddof=1), rel=1e-5)
    seen = [row for row in table(page, "metric-samples") if row["method"] == "random"]
    kept = np.cumsum([[fact["kept"] for fact in one.epochs] for one in of(runs, "random")], 1)
    assert [float(row["samples seen"]) for row in seen] == pytest.approx(kept.mean(0), rel=1e-5)


def test_gap_is_paired(runs: list[Run], page: str) -> None:
    rows = [row for row in table(page, "gap") if row["method"] == "random"]
    ours, full = ([[f["metric"] for f in one.epochs] for one in of(runs, name)] for name in ("random", "full"))
    apart = np.array(ours) - np.array(full)
    assert [float(row["points"]) for row in rows] == pytest.approx(apart.mean(0), rel=1e-4)
    assert [float(row["std"]) for row in rows] == pytest.approx(apart.std(0, ddof=1), rel=1e-4)
    assert {row["method"] for row in table(page, "gap")} == {"infobatch", "random"}


def test_cost_and_time_are_those_of_the_records(runs: list[Run], page: str) -> None:
    row = next(row for row in table(page, "frontier-compute") if row["method"] == "infobatch")
    shares = [100 * end["samples"] / end["full_samples"] for end in ends(runs, "infobatch")]
    assert float(row["compute, % of full data"]) == pytest.approx(np.mean(shares), rel=1e-5)
    control = next(row for row in table(page, "frontier-compute") if row["method"] == "shorter run")
    assert float(control["compute, % of full data"]) == pytest.approx(100 * 22 / 30, rel=1e-4)
    assert float(row["accuracy, %"]) == pytest.approx(np.mean([end["metric"] for end in ends(runs, "infobatch")]))
    row = next(row for row in table(page, "seconds") if row["method"] == "infobatch")
    parts = ("steps", "data", "tests", "planning", "selection", "setup", "the rest")
    assert sum(float(row[name]) for name in parts) == pytest.approx(float(row["total"]), rel=1e-4)
    assert float(row["planning"]) == pytest.approx(0.012 * 30, rel=1e-4)
    row = next(row for row in table(page, "savings") if row["method"] == "infobatch")
    times = [[end["seconds"] for end in ends(runs, name)] for name in ("infobatch", "full")]
    ours, full = (np.mean([part["total"] - part["setup"] for part in parts]) for parts in times)
    assert float(row["time saved, %"]) == pytest.approx(100 * (1 - ours / full), rel=1e-4)


def test_classes_are_those_of_the_records(runs: list[Run], page: str) -> None:
    saving = {row["class"]: float(row["% pruned"]) for row in table(page, "class-saving") if row["method"] == "random"}
    found = [
        100 * (1 - np.array(end["class_kept"]) / (30 * np.array(end["class_size"]))) for end in ends(runs, "random")
    ]
    assert [saving[name] for name in CLASSES] == pytest.approx(np.mean(found, 0), rel=1e-4)
    change = {row["class"]: float(row["points"]) for row in table(page, "class-change") if row["method"] == "random"}
    apart = np.array([end["class_metric"] for end in ends(runs, "random")])
    apart -= np.array([end["class_metric"] for end in ends(runs, "full")])
    assert [change[name] for name in CLASSES] == pytest.approx(apart.mean(0), abs=1e-4)


def test_a_class_without_a_metric_has_no_row() -> None:
    """As one that no test sample is of."""
    both = []
    for method in ("full", "infobatch"):
        start, *middle, end = facts(method, **SMALL)
        end["class_metric"][3] = None
        end["seconds"] |= {"selection": 5.0, "total": end["seconds"]["total"] + 5.0}
        both.append(made([start, *middle, end]))
    page = report.html(both)
    change = {row["class"]: row["points"] for row in table(page, "class-change")}
    assert [name for name, points in change.items() if not points] == [CLASSES[3]]
    shown = {key: {text.text for text in drawing(page, key).iter("text")} for key in ("class-change", "class-saving")}
    assert CLASSES[3] in shown["class-saving"]
    assert {CLASSES[2], CLASSES[3]} & shown["class-change"] == {CLASSES[2]}
    assert CLASSES[3] not in {row["class"] for row in table(page, "class-both")}
    (spent,) = (end["seconds"] for end in ends(both, "infobatch"))
    row = next(row for row in table(page, "seconds") if row["method"] == "infobatch")
    assert float(row["selection"]) == 5.0
    assert float(row["the rest"]) == pytest.approx(0, abs=1e-3)
    took = spent["total"] - spent["setup"]
    row = next(row for row in table(page, "savings") if row["method"] == "infobatch")
    assert float(row["spent on choosing, %"]) == pytest.approx(100 * (5 + spent["planning"]) / took, rel=1e-4)


def test_full_data_cut_short_counts_as_no_method_and_prunes_nothing(runs: list[Run], page: str) -> None:
    assert re.search(r"<h1>(.*)</h1>", page)[1] == "cifar10: 2 methods, 20 runs"  # type: ignore[index]
    for key in ("class-saving", "class-both", "noise", "effective"):
        assert {row["method"] for row in table(page, key)} == {"infobatch", "random"}
    for key in ("pruned", "saved"):
        assert {row["method"] for row in table(page, key)} == {"full", "infobatch", "random"}
    control = next(one for one in runs if one.settings.steps)
    assert control.end is not None
    control = made([control.start, *control.epochs, {**control.end, "epochs": 21}])  # its last epoch is a part of one
    assert series.class_saving(control) == pytest.approx([100 * (1 - 22 / 30)] * 10)


def test_bands_stay_where_values_can_be() -> None:
    runs = []
    for seed, (metric, loss) in enumerate(((99.9, 0.001), (80.0, 0.4), (99.5, 0.002))):
        lines = facts("full", seed, **SMALL)
        runs.append(made([{**f, "metric": metric, "test_loss": loss} if f["kind"] == "epoch" else f for f in lines]))
    page = report.html(runs)
    for key, y, bound in (("metric-epochs", "accuracy, %", 100.0), ("test-loss", "test loss", 0.0)):
        row = table(page, key)[-1]
        mean, std = float(row[y]), float(row["std"])
        assert mean + std > 100 or mean - std < 0  # so that there is something to hold back
        svg = drawing(page, key)
        used = next(one for one in svg.iter("use") if "fill-opacity: 0.16" in (one.get("style") or ""))
        band = next(one for one in svg.iter("path") if f"#{one.get('id')}" == used.get("href"))
        down = float(used.get("y") or 0)
        found = [down + float(point.split()[1]) for point in re.findall(r"[ML]([^MLz]+)", band.get("d") or "")]
        line = lines_of(svg)[0][0][-1, 1]
        ratio = (line - min(found)) / (max(found) - line)  # pixels upwards to pixels downwards
        assert ratio == pytest.approx((100 - mean) / std if bound else std / mean, rel=0.02)


@pytest.mark.parametrize(
    ("value", "text"),
    [(-0.0, "0.00"), (-0.004, "0.00"), (0.004, "0.00"), (-0.006, "\N{MINUS SIGN}0.01"), (1.5, "+1.50")],
)
def test_nothing_has_no_sign(value: float, text: str) -> None:
    assert figure.signed(value) == text
    assert figure.csv_link(["x"], [[-0.0]]).endswith("x%0A0%0A")


def test_weights_are_shares_of_all_samples_trained_on(runs: list[Run], page: str) -> None:
    row = next(row for row in table(page, "weights") if row["method"] == "infobatch")
    weights = [
        (value, count)
        for one in of(runs, "infobatch")
        for fact in one.epochs
        for value, count in zip(fact["weights"]["values"], fact["weights"]["counts"], strict=True)
    ]
    heavy = sum(count for value, count in weights if 1.5 < value <= 2.5) / sum(count for _, count in weights)
    assert float(row["weight 1.5 to 2.5, %"]) == pytest.approx(100 * heavy, rel=1e-4)
    assert sum(float(value) for key, value in row.items() if key != "method") == pytest.approx(100)


def test_distributions_are_of_the_first_and_last_pruned_epoch(runs: list[Run], page: str) -> None:
    rows = table(page, "losses-0")
    first = next(one for one in of(runs, "infobatch") if one.settings.seed == 0)
    pruned = [fact for fact in first.epochs if "losses" in fact and fact["kept"] < fact["size"]]
    assert sorted({int(row["epoch"]) for row in rows}) == [pruned[0]["epoch"] + 1, pruned[-1]["epoch"] + 1]
    shown = [float(row["after rescaling"]) for row in rows[40:]]
    assert shown == pytest.approx(pruned[-1]["losses"]["rescaled"], rel=1e-4)


@pytest.mark.usefixtures("undrawn")
def test_distributions_are_of_methods_alone() -> None:
    """The last epoch of full data cut short may be a part of one, of which nothing was pruned."""
    lines = facts("full", steps=5, **SMALL)
    last = [line for line in lines if line["kind"] == "epoch"][-1]
    last |= {"kept": 100, "losses": facts("infobatch", **SMALL)[2]["losses"]}
    runs = [run("full", **SMALL), run("infobatch", **SMALL), made(lines)]
    keys = re.findall(r'<figure id="(losses-\d+)"', report.html(runs))
    assert keys == ["losses-0"]


def test_drawn_lines_follow_the_numbers_behind_them(page: str) -> None:
    """Places on the drawing are the numbers, moved and stretched: for each curve the best such fit leaves nothing."""
    fitted = 0
    for key, y in (("saved", "% of all samples"), ("largest-weight", "weight"), ("effective", "% of all samples")):
        rows = table(page, key)
        labels = list(dict.fromkeys(row["method"] for row in rows))
        for label, (line,) in zip(labels, lines_of(drawing(page, key)), strict=True):
            own = [row for row in rows if row["method"] == label]
            if len(line) != len(own) or len({row[y] for row in own}) == 1:  # a straight line has two points
                continue
            for places, name in ((line[:, 0], "epoch"), (line[:, 1], y)):
                values = [float(row[name]) for row in own]
                assert np.abs(np.polyval(np.polyfit(values, places, 1), values) - places).max() < 0.15
            fitted += 1
    assert fitted >= 3


def test_values_under_the_pointer_are_the_numbers(runs: list[Run], page: str) -> None:
    shown = ["".join(tip.itertext()) for tip in drawing(page, "pruned").iter("g") if tip.get("class") == "tip"]
    assert len(shown) == 30
    left = [fact["size"] - fact["kept"] for one in of(runs, "infobatch") for fact in one.epochs if fact["epoch"] == 9]
    assert f"epoch 10■ full 0■ infobatch {np.mean(left):,.0f} ± {np.std(left, ddof=1):,.0f}" in shown[9]


def test_pointer_finds_values_where_they_are_drawn(page: str) -> None:
    svg = drawing(page, "metric-epochs")
    guides = [one.get("d") or "" for one in svg.iter("path") if one.get("class") == "guide"]
    middles = np.array([float(re.split("[M ]", guide)[1]) for guide in guides])
    assert len(middles) == 30
    for (line,) in lines_of(svg):
        inner = line[1:-1, 0]  # the outermost strips end at the frame
        assert np.abs(middles[None] - inner[:, None]).min(1).max() < 0.3


def test_frontier_is_what_none_beats() -> None:
    def point(label: str, cost: float, mean: float) -> frontier.Point:
        return frontier.Point(label, cost, mean, 0.0, 1)

    points = [point("a", 1, 1), point("b", 2, 3), point("c", 3, 2), point("d", 2, 2)]
    points += [point("e", 5, 4), point("f", 5, 4)]  # alike, so neither beats the other
    points += [point("g", 6, 4), point("h", 5, 3)]  # as good in one and worse in the other
    assert [one.label for one in frontier.best(points)] == ["a", "b", "e", "f"]


@pytest.mark.usefixtures("undrawn")
def test_the_band_is_named_where_there_is_one(page: str) -> None:
    assert "The grey band joins the methods that no other beats in both cost and accuracy: " in page
    assert "grey band" not in report.html([run("full", **SMALL)])


def test_long_curves_are_thinned_to_their_ends() -> None:
    assert series.thinned(list(range(1, 1001)), 240)[-1] == 1000
    assert len(series.thinned(list(range(1, 1001)), 240)) <= 240
    assert series.thinned([1, 2, 3], 240) == [1, 2, 3]


def ended(method: str, reached: float, **settings: Any) -> list[Run]:
    """Three runs of which the ends alone are known."""
    return [
        Run(
            f"{method}-{seed}",
            {"settings": Settings(method=method, seed=seed, **settings).plain(), "metric": "accuracy, %"},
            end={"metric": reached + seed / 10, "saved": 0.3, "steps": 100, "seconds": {"total": 1.0}},
        )
        for seed in range(3)
    ]


def test_each_at_its_best_rate_comes_first() -> None:
    metrics = {("full", 0.1): 90.0, ("full", 0.2): 92.0, ("random", 0.1): 91.0, ("random", 0.2): 89.0}
    page = report.html([run for (method, lr), reached in metrics.items() for run in ended(method, reached, lr=lr)])
    rows = re.findall(r'<th scope="row"><?.*?</svg>([^<]*)</th>|<th scope="row">([^<]*)</th>', section(page, "verdict"))
    each = [f"{name} · lr={lr}" for lr in (0.1, 0.2) for name in ("full", "random")]
    assert ["".join(row) for row in rows] == ["full", "random", *each]
    points = [(row["method"], float(row["learning rate"]), float(row["accuracy, %"])) for row in table(page, "rates")]
    assert points == [(*key, pytest.approx(reached + 0.1)) for key, reached in metrics.items()]
    assert 'id="rates"' not in report.html(ended("full", 90.0) + ended("random", 89.0))


def test_what_went_wrong_altogether_does_not_flatten_the_rest() -> None:
    metrics = {"full": 90.0, "infobatch": 89.8, "tiers": 89.6, "random:ratio=0.3": 10.0}
    runs = [run for method, reached in metrics.items() for run in ended(method, reached)]
    page = report.html(runs)
    assert f"\N{LEFTWARDS ARROW} {figure.signed(-80.0)}" in page
    assert "Below the figure: random:ratio=0.3." in page
    rest = report.html([run for run in runs if not run.name.startswith("random")])
    assert "\N{LEFTWARDS ARROW}" not in rest
    assert "Below the figure" not in rest
