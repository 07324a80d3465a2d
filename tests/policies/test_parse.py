"""A policy is built again from what it printed into the log, and from nothing else."""

from __future__ import annotations

import pytest

from swell.errors import ConfigError
from swell.policies import AtEpochEnds, Clamp, Fixed, Goodput, NoiseScale, RoundTo, Schedule
from swell.policies.decision import explanation
from swell.policies.parse import policy_from_text
from tests.policies.observations import seen

WRITTEN = [
    Fixed(256, base=64),
    Goodput(128, max=4096, micro=(8, 64), dwell=1000),
    NoiseScale(base=64, max=4096),
    Schedule([(0, 64), (2.5, 128)], unit="epochs"),
    Clamp(RoundTo(AtEpochEnds(Goodput(64, max=512)), multiple=8), high=256),
]


@pytest.mark.parametrize("policy", WRITTEN, ids=repr)
def test_what_a_policy_prints_is_enough_to_build_it_again(policy):
    assert policy_from_text(repr(policy)) == policy


@pytest.mark.parametrize(
    "text",
    [
        "",
        "64",
        "Fixed(",
        "Fixed(64)",
        "Fixed(size=0)",
        "Fixed(size=open('x'))",
        "UserPolicy(function=<function f at 0x7f>)",
        "__import__('os').system('true')",
        "Fixed(**{'size': 64})",
        "(" * 500,
    ],
)
def test_anything_else_is_refused_and_never_run(text):
    with pytest.raises(ConfigError):
        policy_from_text(text)


def test_reasons_come_from_within_whatever_wraps_them():
    inner = Goodput(64, max=512)
    decision = explanation(Clamp(AtEpochEnds(inner), high=256), seen())
    assert decision == inner.explain(seen())
    assert explanation(Clamp(Fixed(64), high=32), seen()) is None
