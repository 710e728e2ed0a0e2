"""A task with a metric of which less is better, from its training to the page."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from infobatch.lab.runs.many_runs import PLAN
from infobatch.lab.runs.records import read


def test_a_run_is_summarized_by_its_own_metric(say: Any) -> None:
    code, out, err = say("train", "--task", "toy:guessing", "--method", "full", "--name", "mine")
    assert code == 0, err
    (folder,) = Path("runs/mine").iterdir()
    end = read(folder).end
    assert end is not None
    assert end["metric"] == pytest.approx(math.exp(end["test_loss"]), rel=1e-5)  # of one token each
    assert end["best"] == min(epoch["metric"] for epoch in read(folder).epochs)
    assert f"perplexity {end['metric']:.3f}, 0.0 % of the samples saved" in out + err


@pytest.mark.usefixtures("blank")
def test_a_comparison_judges_by_the_margin_of_the_task(say: Any) -> None:
    words = ("--task", "toy:guessing", "--methods", "infobatch", "--seeds", "2", "--no-equal-steps", "--name", "two")
    code, out, err = say("compare", *words, "--json")
    assert code == 0, err
    found = json.loads(out)["comparison"]
    assert (found["margin"], found["metric"]) == (0.02, "perplexity")
    assert found["metric_info"]["higher_is_better"] is False
    assert json.loads(Path("runs/two", PLAN).read_text())["margin"] is None
    code, out, err = say("report", "runs/two", "--margin", "0.5")
    assert code == 0, err
    assert "For perplexity, lower is better." in " ".join(out.split())
    assert "points" not in out
    code, out, _ = say("report", "runs/two", "--margin", "0.5", "--json")
    assert json.loads(out)["comparison"]["margin"] == 0.5
    code, out, _ = say("report", "runs/two", "--json")
    assert json.loads(out)["comparison"]["margin"] == 0.02
