"""Methods that choose inside the batch, by their text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infobatch.errors import InputError
from infobatch.lab.train.method_text import (
    NOT_BY_TEXT,
    SIEVE,
    Sieved,
    is_reweighted,
    is_sieve,
    make_sieve_method,
    parse_method,
    parse_sieve,
    parse_static,
    pruning_method,
)
from infobatch.lab.train.settings import Settings
from infobatch.sieve import SIEVE_METHODS

BY_PROXY = Sieved("hardest", {}, look="proxy", net="", every=4, then="")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("sieve.hardest", BY_PROXY),
        ("sieve.hardest:keep=0.25", replace(BY_PROXY, settings={"keep": 0.25})),
        ("sieve.hardest:look=own", replace(BY_PROXY, look="own")),
        ("sieve.hardest:net=mlp16, every=2", replace(BY_PROXY, net="mlp16", every=2)),
        ("sieve.hardest:net=timm:resnet18,every=1", replace(BY_PROXY, net="timm:resnet18", every=1)),
        ("sieve.hardest:then=infobatch", replace(BY_PROXY, then="infobatch")),
        ("sieve.hardest:then=infobatch:ratio=0.3", replace(BY_PROXY, then="infobatch:ratio=0.3")),
        ("sieve.adaptive:threshold=0.5", Sieved("adaptive", {"threshold": 0.5}, "proxy", "", 4, "")),
        ("sieve.random_rows:keep=0.3,then=ucb", Sieved("random_rows", {"keep": 0.3}, "", "", 4, "ucb")),
        ("sieve.selective_backprop", Sieved("selective_backprop", {}, "own", "", 4, "")),  # as published
        ("sieve.selective_backprop:look=proxy", Sieved("selective_backprop", {}, "proxy", "", 4, "")),
        ("infobatch", None),
        ("static.el2n:then=infobatch", None),
    ],
)
def test_a_text_describes_a_sieve(text: str, found: Sieved | None) -> None:
    assert parse_sieve(text) == found


@pytest.mark.parametrize("name", [name for name in SIEVE_METHODS if name not in NOT_BY_TEXT])
def test_every_method_that_a_text_can_describe_has_the_defaults_of_the_library(name: str) -> None:
    sieved = parse_sieve(SIEVE + name)
    assert sieved is not None
    assert repr(make_sieve_method(sieved.name, sieved.settings)) == repr(SIEVE_METHODS[name]())
    assert bool(sieved.look) == SIEVE_METHODS[name]().needs_look
    assert Settings(method=SIEVE + name).method == SIEVE + name


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("sieve.hardes", "Did you mean sieve.hardest"),
        ("sieve.", "a method inside the batch"),
        ("sieve.hardest:", "settings after the colon"),
        ("sieve.hardest:kep=0.5", "Did you mean keep"),
        ("sieve.hardest:keep", "KEY=VALUE"),
        ("sieve.hardest:then=", "KEY=VALUE"),
        ("sieve.hardest:keep=0.5,keep=0.6", "each setting of sieve.hardest once"),
        ("sieve.hardest:keep=0", r"keep in \(0, 1\]"),
        ("sieve.hardest:keep=1.01", r"keep in \(0, 1\]"),
        ("sieve.hardest:keep=half", "keep of sieve.hardest as float"),
        ("sieve.hardest:keep=True", "keep of sieve.hardest as float"),
        ("sieve.hardest:class_floor=0.6", "class floor"),
        ("sieve.hardest:labels=1", "KEY=VALUE"),  # a function, which no text describes
        ("sieve.hardest:look=prox", "Did you mean proxy"),
        ("sieve.hardest:look=own,net=mlp", "net with look=own"),
        ("sieve.hardest:look=own,every=2", "every with look=own"),
        ("sieve.selective_backprop:net=mlp", "net with look=own"),
        ("sieve.hardest:every=0", "every as an integer"),
        ("sieve.hardest:every=2.5", "every of sieve.hardest as int"),
        ("sieve.hardest:net=3", "net of sieve.hardest as str"),
        ("sieve.random_rows:look=own", "Known names: keep, then"),
        ("sieve.random_rows:every=2", "Known names: keep, then"),
        ("sieve.hardest:then=infobach", "Did you mean infobatch"),
        ("sieve.hardest:then=sieve.lot", r"sieve.lot:then=infobatch"),
        ("sieve.hardest:then=static.el2n", "selects once"),
        ("static.el2n:then=sieve.hardest", r"sieve.hardest:then=infobatch"),
        ("bls:inner=sieve.hardest", r"sieve.hardest:then=infobatch"),
        ("sieve.adaptive:sizes=0.5", "KEY=VALUE"),
        ("sieve.adaptive:threshold=2", r"threshold in \(0, 1\]"),
        ("sieve.band:keep=0.9,skip=0.2", "at most 1"),
        ("sieve.selective_backprop:begin=0.9,end=0.5", "begin before end"),
        ("sieve.rho_loss", "reference network"),
        ("sieve.es", "remembered losses"),
        ("sieve.tokens", "which tokens count"),
    ],
)
def test_bad_texts_are_refused_before_anything_is_trained(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        Settings(method=text)


def test_what_a_text_cannot_describe_is_a_method_of_the_library() -> None:
    assert set(NOT_BY_TEXT) < set(SIEVE_METHODS)


def test_the_method_on_top_decides_what_grows() -> None:
    """A sieve leaves rows out inside the batch: only the method that prunes epochs has steps to make up for."""
    assert pruning_method("sieve.hardest") == pruning_method("sieve.hardest:then=full") == ""
    assert pruning_method("sieve.hardest:then=infobatch:ratio=0.3") == "infobatch:ratio=0.3"
    assert not is_reweighted("sieve.lot")
    assert is_reweighted("sieve.hardest:then=infobatch")
    assert not is_reweighted("sieve.lot:then=ucb")
    assert Settings(method="sieve.lot", compensate="loss").grows == "none"
    assert Settings(method="sieve.lot:then=infobatch", compensate="loss").grows == "loss"


def test_one_text_is_of_one_kind() -> None:
    for text, kind in (("sieve.lot", "sieve"), ("static.el2n", "static"), ("infobatch", "")):
        assert is_sieve(text) == (parse_sieve(text) is not None) == (kind == "sieve")
        assert (parse_static(text) is not None) == (kind == "static")
    with pytest.raises(InputError, match="infobatch train"):
        parse_method("sieve.lot")
