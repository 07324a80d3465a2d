"""Seesaw and LateSwitch: the batch grows where the schedule falls, or once, late in the run."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.types import ScaleState
from swell.errors import ConfigError
from swell.policies import LateSwitch, Seesaw
from swell.rules import Linear, Root
from tests.policies.observations import seen


@given(halvings=st.integers(0, 6), base=st.integers(1, 512))
def test_a_rate_halved_n_times_doubles_the_batch_n_times(halvings, base):
    policy = Seesaw(base, max=base * 64)
    assert policy.batch(seen(lr_height=0.5**halvings, epoch_size=None)) == base * 2**halvings


@given(height=st.floats(0.02, 1.0))
def test_with_the_root_rule_the_rate_falls_by_the_root_of_what_the_schedule_asks_for(height):
    batch = Seesaw(64, max=64 * 64, step=1.01).batch(seen(lr_height=height, epoch_size=None))
    factor = Root().factors(ScaleState(scale=batch / 64, base_batch=64)).lr
    assert factor * height == pytest.approx(math.sqrt(height), rel=0.02)


@given(height=st.floats(0.02, 1.0))
def test_with_the_linear_rule_the_rate_stays(height):
    batch = Seesaw(64, max=64 * 64, step=1.01).batch(seen(lr_height=height, epoch_size=None))
    assert Linear().factors(ScaleState(scale=batch / 64, base_batch=64)).lr * height == pytest.approx(1, rel=0.03)


@given(height=st.floats(0, 1), low=st.integers(1, 100), times=st.integers(1, 100))
def test_the_batch_stays_between_base_and_max(height, low, times):
    assert low <= Seesaw(low, max=low * times).batch(seen(lr_height=height)) <= max(low * times, low)


def test_a_late_switch_happens_once_and_late():
    policy = LateSwitch(64, to=512, at=0.7)
    at = [policy.batch(seen(progress=done * 100.0, total_progress=100.0)) for done in (0.0, 0.69, 0.7, 1.0)]
    assert at == [64, 64, 512, 512]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Seesaw(64, max=32),
        lambda: Seesaw(0, max=32),
        lambda: Seesaw(64, max=128, step=1),
        lambda: LateSwitch(64, to=0),
        lambda: LateSwitch(64, to=128, at=1.2),
    ],
)
def test_bad_arguments_are_refused_with_what_to_do(make):
    with pytest.raises(ConfigError, match="expected"):
        make()
