"""Adam's bias correction under betas that change, against an Adam that keeps the products of its betas."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.errors import ConfigError
from swell.rules import effective_step
from tests.reference.rules import CountingAdam, SlowAdam

powers = st.lists(st.floats(0.05, 64), min_size=1, max_size=60)


@given(powers=powers, beta=st.floats(0.5, 0.9999))
def test_the_shown_step_makes_the_product_of_all_betas(powers: list[float], beta: float) -> None:
    product = 1.0
    for done, power in enumerate(powers, start=1):
        product *= beta**power
        shown = effective_step(math.fsum(powers[:done]), power)
        assert (beta**power) ** shown == pytest.approx(product, rel=1e-9)


@given(powers=powers, seed_gradients=st.lists(st.floats(-10, 10), min_size=60, max_size=60))
def test_adam_with_the_shown_step_is_adam_with_its_products(powers: list[float], seed_gradients: list[float]) -> None:
    slow, counting, total = SlowAdam(), CountingAdam(), 0.0
    for power, gradient in zip(powers, seed_gradients, strict=False):
        betas = (0.9**power, 0.999**power)
        total += power
        expected = slow.step(gradient, betas=betas, lr=0.1, eps=1e-8)
        shown = effective_step(total, power) - 1
        found = counting.step(gradient, betas=betas, lr=0.1, eps=1e-8, shown=shown)
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-12)


@given(steps=st.integers(1, 10**6))
def test_nothing_changes_while_every_power_is_one(steps: int) -> None:
    assert effective_step(float(steps), 1.0) == steps


@given(power=st.floats(0.01, 100), steps=st.integers(1, 1000))
def test_a_constant_power_counts_plain_steps(power: float, steps: int) -> None:
    assert effective_step(power * steps, power) == pytest.approx(steps)


@pytest.mark.parametrize(
    ("power_sum", "power"), [(1.0, 0.0), (1.0, -1.0), (1.0, 2.0), (math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0)]
)
def test_a_sum_that_cannot_hold_the_power_is_refused(power_sum: float, power: float) -> None:
    with pytest.raises(ConfigError, match=r"power_sum is .* power is "):
        effective_step(power_sum, power)
