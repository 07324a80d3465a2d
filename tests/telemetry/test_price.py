"""What a run took beside its base run, from its steps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.moments import gain
from swell.core.types import Moments
from swell.telemetry.price import Price, price_of

BASE = 32
NOISES = st.tuples(*[st.none() | st.floats(0, 1e9)] * 3)
STEPS = st.lists(st.tuples(st.integers(1, 4096), st.floats(0, 1), st.floats(1e-4, 10), NOISES), min_size=1, max_size=30)


@given(steps=STEPS, power=st.sampled_from([0.5, 1.0]))
def test_the_worth_lies_within_its_bounds_and_these_between_a_step_and_its_samples(steps, power):
    price = Price(base_batch=BASE, worth_power=power)
    for batch, part, seconds, noise in steps:
        scale = batch / BASE
        price.add(batch=batch, worth=scale**part, seconds=seconds, noise=noise)
    assert price.least <= price.worth <= price.most
    slowest, quickest = (sum(pick(1.0, batch / BASE) for batch, *_ in steps) for pick in (min, max))
    assert slowest * (1 - 1e-9) <= price.least and price.most <= quickest * (1 + 1e-9)
    samples = price.samples_ratio
    assert samples is not None and samples.low <= samples.value <= samples.high


def test_a_run_at_the_base_batch_is_its_own_price():
    price = Price(base_batch=BASE)
    for _ in range(20):
        price.add(batch=BASE, worth=1.0, seconds=0.1, noise=(None, None, None))
    assert price.words() is None
    assert price.samples_ratio == (1.0, 1.0, 1.0) and price.time_ratio == pytest.approx((1.0, 1.0, 1.0))


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_a_larger_batch_is_priced_by_the_law_at_both_ends_of_the_noise(power):
    def law(noise_scale: float) -> float:
        return 8 ** (1 - power) * gain(8, Moments(1.0, noise_scale), base_batch=BASE) ** power

    price = Price(base_batch=BASE, worth_power=power)
    for _ in range(10):
        price.add(batch=BASE, worth=1.0, seconds=0.1, noise=(None, None, None))
    for _ in range(100):
        price.add(batch=8 * BASE, worth=law(200.0), seconds=0.2, noise=(200.0, 100.0, 400.0))
    assert (price.least, price.worth, price.most) == pytest.approx([10 + 100 * law(x) for x in (100.0, 200.0, 400.0)])
    assert price.samples_ratio == pytest.approx([810 / worth for worth in (price.worth, price.most, price.least)])
    assert price.time_ratio == pytest.approx([210 / worth for worth in (price.worth, price.most, price.least)])
    words = price.words()
    assert words is not None and "steps of 32" in words and f"{21 / (0.1 * price.worth):.2f} (" in words


def test_without_steps_at_the_base_batch_its_time_is_not_known():
    price = Price(base_batch=BASE)
    price.add(batch=4 * BASE, worth=2.0, seconds=0.1, noise=(None, None, None))
    assert price.time_ratio is None and (price.least, price.most) == (1.0, 4.0)
    assert (price.words() or "").endswith("its time is not known")


def test_columns_with_gaps_are_priced_like_steps_without_noise():
    columns = {"batch": [128.0], "gain": [2.0], "step_s": [0.1]}
    columns |= {name: [math.nan] for name in ("noise", "noise_low", "noise_high")}
    assert price_of(columns, base_batch=BASE, worth_power=0.5).least == 2.0  # the mean of its samples and of nothing
