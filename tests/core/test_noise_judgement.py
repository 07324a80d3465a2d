"""Which of two noise estimates is acted on."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.noise_judgement import cautious_noise
from swell.core.types import Moments, NoiseEstimate

moments = st.builds(Moments, signal=st.floats(-10, 1e6), noise=st.floats(-10, 1e6))


def estimate(total: Moments, *, observations: int = 1) -> NoiseEstimate:
    return NoiseEstimate(total=total, groups=(total,), interval=(0.0, math.inf), observations=observations)


@given(plain=moments, metric=moments)
def test_the_smaller_noise_scale_is_acted_on_whichever_metric_it_is_of(plain: Moments, metric: Moments) -> None:
    cautious = cautious_noise(estimate(plain), estimate(metric))
    assert cautious is not None and cautious.total in (plain, metric)
    assert cautious.total.noise_scale == min(plain.noise_scale, metric.noise_scale)


def test_of_equal_noise_scales_the_plain_estimate_is_acted_on() -> None:
    plain, metric = (estimate(Moments(signal=1.0, noise=8.0), observations=count) for count in (1, 2))
    assert cautious_noise(plain, metric) is plain


def test_a_gradient_without_signal_has_the_larger_noise_scale() -> None:
    endless, finite = estimate(Moments(signal=0.0, noise=1.0)), estimate(Moments(signal=1.0, noise=1e6))
    assert cautious_noise(endless, finite) is finite
    assert cautious_noise(finite, endless) is finite


@pytest.mark.parametrize("only", [None, estimate(Moments(signal=1.0, noise=8.0))])
def test_an_estimate_that_is_alone_is_acted_on(only: NoiseEstimate | None) -> None:
    assert cautious_noise(only, None) is only
    assert cautious_noise(None, only) is only
