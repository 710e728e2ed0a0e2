"""Settings, nets and optimizers: by name, with near names for unknown ones."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from infobatch.errors import InputError
from infobatch.lab.runs.runner import settle
from infobatch.lab.tasks.nets import make_net
from infobatch.lab.train.loop import run
from infobatch.lab.train.method_text import parse_method
from infobatch.lab.train.optimizers import make_optimizer, make_scheduler
from infobatch.lab.train.settings import Settings


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"epoch": 3}, "Did you mean epochs"),
        ({"epochs": "3"}, "epochs as int"),
        ({"epochs": True}, "epochs as int"),
        ({"epochs": 0}, "epochs from 1"),
        ({"lr": float("nan")}, "lr from 0"),
        ({"schedule": "cosin"}, "Did you mean cosine"),
        ({"label_smoothing": 1.0}, r"label_smoothing in \[0, 1\)"),
        ({"method": "infobach"}, "Did you mean infobatch"),
        ({"method": "infobatch:ration=0.5"}, "Did you mean ratio"),
        ({"method": "infobatch:ratio"}, "KEY=VALUE"),
        ({"method": "infobatch:ratio=2"}, r"ratio in \[0, 1\)"),
        ({"method": "full:ratio=2"}, "it has none"),
        ({"seed": -1}, "seed from 0"),
        ({"threads": 10**6}, "threads from 0 to 1,024"),
        ({"epochs": 2.7}, "epochs as int"),
        ({"milestones": [0.5, float("nan")]}, r"milestones in \[0, 1\]"),
        ({"milestones": ["0.5"]}, r"milestones in \[0, 1\]"),
        ({"nesterov": True, "momentum": 0.0}, "a momentum above 0 with nesterov"),
        ({"method": "full:"}, "settings after the colon"),
        ({"method": "infobatch:ratio={[]}"}, r"ratio of infobatch as float, for example 0.5; got '\{\[\]\}'"),
        ({"method": "infobatch:rescale=0"}, "rescale of infobatch as bool"),
        ({"method": "infobatch:rounding=1"}, "rounding of infobatch as str"),
        ({"method": "ucb:c=nan"}, "c of ucb as float"),
        ({"method": "seta:groups=2.5"}, "groups of seta as int"),
        ({"method": f"dynamic_uncertainty:window={10**20}"}, "window of dynamic_uncertainty as int"),
        ({"method": "seta:annealed=True"}, "annealed of seta as float"),
        ({"method": "static.el2n:then=5"}, "then of static.el2n as str"),
        ({"method": "static.el2n:share=[]"}, "share of static.el2n as float"),
        ({"method": "infobatch:ratio=0.5,"}, "KEY=VALUE"),
        ({"method": "infobatch:ratio="}, "KEY=VALUE"),
        ({"method": "infobatch:ratio=0.3,ratio=0.6"}, "each setting of infobatch once"),
        ({"method": "static.el2n:"}, "settings after the colon"),
        ({"method": "static.el2n:runs=0"}, "runs of static.el2n"),
        ({"method": "static.craig:runs=2"}, "settings of static.craig"),  # its evidence is of one run
    ],
    ids=str,
)
def test_bad_settings_are_refused_by_name(given: dict[str, object], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        Settings.of(given)


def test_whole_numbers_of_numpy_are_kept_as_plain_ones() -> None:
    settings = Settings(seed=np.int64(3), epochs=np.int32(7))  # type: ignore[arg-type]
    assert settings == Settings(seed=3, epochs=7)
    assert json.dumps(settings.plain()) == json.dumps(Settings(seed=3, epochs=7).plain())
    with pytest.raises(InputError, match="seed as int"):
        Settings(seed=np.float64(3))  # type: ignore[arg-type]


def test_settings_survive_a_record() -> None:
    settings = Settings.of({"method": "tiers", "milestones": [0.5]}, {"epochs": 7, "lr": 1})
    assert Settings.of(settings.plain()) == settings
    assert settings.epochs == 7
    assert settings.milestones == (0.5,)
    assert settings.key == Settings.of(settings.plain()).key
    assert settings.key != settings.but(seed=1).key


@pytest.mark.parametrize(
    "given",
    [{"compensate": "lr"}, {"ideas": "average+whole_last"}, {"method": "ramp:ratio=0.4"}, {"method": "one_walk"}],
    ids=str,
)
def test_what_only_older_records_have_is_read_and_not_trained(given: dict[str, str]) -> None:
    ((name, value),) = given.items()
    settings = Settings.from_record({"format": 2, "settings": given})
    assert getattr(settings, name) == value
    with pytest.raises(InputError, match=value.partition(":")[0].replace("+", r"\+")):
        settings.check_trainable()
    with pytest.raises(InputError, match=value.partition(":")[0].replace("+", r"\+")):
        settle(given)
    with pytest.raises(InputError, match=value.partition(":")[0].replace("+", r"\+")):
        next(run(settings))


def test_older_records_say_what_they_left_implicit() -> None:
    """Format 1 weighted a short last batch of a pruned epoch as a full one; "auto" let the learning rate grow."""
    first = Settings.from_record({"format": 1, "settings": {"method": "infobatch", "compensate": "auto"}})
    assert (first.ideas, first.compensate, first.grows) == ("whole_last", "lr", "lr")
    full = Settings.from_record({"format": 1, "settings": {"method": "full", "compensate": "auto"}})
    assert (full.ideas, full.compensate) == ("", "none")
    ramp = Settings.from_record({"format": 1, "settings": {"method": "ramp", "compensate": "loss"}})
    assert (ramp.ideas, ramp.grows) == ("whole_last", "loss")
    with pytest.raises(InputError, match="compensate"):
        Settings.from_record({"format": 2, "settings": {"compensate": "auto"}}).but(compensate="sum")


def test_methods_by_name() -> None:
    assert repr(parse_method("infobatch:ratio=0.3, delta=1,rescale=False")) == repr(
        parse_method("infobatch:rescale=False,delta=1,ratio=0.3")
    )
    assert parse_method("infobatch:rounding=paper").settings["rounding"] == "paper"


def test_what_follows_a_plus_is_said_to_belong_elsewhere() -> None:
    with pytest.raises(InputError, match="--compensate loss"):
        parse_method("infobatch+loss")
    with pytest.raises(InputError, match="dropped"):  # of older records: asking for --compensate lr would be refused
        parse_method("infobatch+lr")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("resnet18", 11_220_132), ("resnet50", 23_705_252), ("conv", 1_657_988), ("mlp", 878_180), ("resnet8", None)],
)
def test_nets_have_the_size_they_should(name: str, parameters: int | None) -> None:
    """The ResNets' counts are those of the common CIFAR versions with 100 classes."""
    net = make_net(name, (3, 32, 32), 100)
    if parameters is not None:
        assert sum(each.numel() for each in net.parameters()) == parameters
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 100)


@pytest.mark.slow
def test_nets_of_transformers() -> None:
    net = make_net("transformers:vit", (3, 32, 32), 10)
    assert net(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    with pytest.raises(InputError, match="vit"):
        make_net("transformers:vitt", (3, 32, 32), 10)


def test_unknown_nets_and_optimizers() -> None:
    with pytest.raises(InputError, match="Did you mean resnet18"):
        make_net("resnet-18", (3, 32, 32), 10)
    with pytest.raises(InputError, match="timm"):
        make_net("tim:resnet18", (3, 32, 32), 10)
    with pytest.raises(InputError, match="mlp"):
        make_net("resnet18", (12,), 10)
    with pytest.raises(InputError, match="Did you mean adam"):
        make_optimizer(torch.nn.Linear(1, 1), Settings(optimizer="adamm"))


@pytest.mark.parametrize("schedule", ["onecycle", "cosine", "poly", "step", "constant"])
def test_schedules_end_where_they_should(schedule: str) -> None:
    settings = Settings.of({"schedule": schedule, "lr": 1.0})
    optimizer = make_optimizer(torch.nn.Linear(1, 1), settings)
    scheduler = make_scheduler(optimizer, settings, 100)
    rates = []
    for _ in range(100):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if len(rates) < 100:
            scheduler.step()
    assert max(rates) == pytest.approx(1.0)
    assert rates[-1] == pytest.approx({"poly": 0.01**0.9, "step": 0.008, "constant": 1.0}.get(schedule, 0.0), abs=1e-3)
    if schedule == "poly":
        assert rates == pytest.approx([(1 - step / 100) ** 0.9 for step in range(100)])
    if schedule == "onecycle":
        assert rates.index(max(rates)) == pytest.approx(29, abs=1)
