"""Signal and noise of single steps, the gain and the efficiency that follow from them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.moments import consecutive_differences, efficiency, estimate, gain
from swell.core.types import Moments
from swell.errors import ConfigError
from tests.reference.moments import between_groups
from tests.reference.rules import adascale_gain, mean_gain_of_two_batches

sizes = st.lists(st.integers(1, 20), min_size=2, max_size=9)
scales = st.floats(1e-4, 1e6)
moments = st.builds(Moments, st.floats(-1e9, 1e9), st.floats(-1e9, 1e9))
positive = st.floats(1e-6, 1e6)


def squares(gradients: np.ndarray, sizes: list[int]) -> tuple[float, float]:
    """A and N of DESIGN's estimator."""
    weights = np.array(sizes) / sum(sizes)
    return float(weights @ (gradients**2).sum(axis=1)), float(((weights @ gradients) ** 2).sum())


@given(sizes=sizes, seed=st.integers(0, 2**32 - 1))
def test_two_squared_norms_hold_all_that_an_analysis_of_variance_finds(sizes: list[int], seed: int) -> None:
    gradients = np.random.default_rng(seed).normal(size=(len(sizes), 5))
    small, big = squares(gradients, sizes)
    found = estimate(small, big, count=len(sizes), batch=sum(sizes))
    assert (found.signal, found.noise) == pytest.approx(between_groups(gradients, sizes), rel=1e-9, abs=1e-9)


@given(sizes=sizes, signal=st.floats(0, 1e6), noise=st.floats(0, 1e6))
def test_the_estimators_are_unbiased_for_uneven_sizes(sizes: list[int], signal: float, noise: float) -> None:
    """By their expected squared norms, E|g_j|^2 = signal + noise / b_j and E|g|^2 = signal + noise / B."""
    batch = sum(sizes)
    small = sum(b / batch * (signal + noise / b) for b in sizes)
    found = estimate(small, signal + noise / batch, count=len(sizes), batch=batch)
    assert (found.signal, found.noise) == pytest.approx((signal, noise), rel=1e-9, abs=1e-6)


@given(sizes=sizes, seed=st.integers(0, 2**32 - 1))
def test_noise_is_never_negative_but_by_rounding(sizes: list[int], seed: int) -> None:
    gradients = np.random.default_rng(seed).normal(size=(len(sizes), 3))
    small, big = squares(gradients, sizes)
    assert estimate(small, big, count=len(sizes), batch=sum(sizes)).noise >= -1e-9


@given(seed=st.integers(0, 2**32 - 1), batch=st.integers(1, 1000))
def test_consecutive_differences_take_two_steps_for_two_small_batches(seed: int, batch: int) -> None:
    pair = np.random.default_rng(seed).normal(size=(2, 7))
    small, big = squares(pair, [batch, batch])
    expected = estimate(small, big, count=2, batch=2 * batch)
    found = consecutive_differences(
        float(pair[0] @ pair[0]), float(pair[1] @ pair[1]), float(pair[0] @ pair[1]), batch=batch
    )
    assert (found.signal, found.noise) == pytest.approx((expected.signal, expected.noise), rel=1e-9, abs=1e-9)


def test_consecutive_differences_are_biased_towards_gain_as_documented() -> None:
    """On a quadratic whose Hessian is the identity, so that tr(H Sigma) is the dimension."""
    rng, dim, lr, batch = np.random.default_rng(0), 50, 0.2, 4
    found, drift = [], []
    for _ in range(4000):
        true = np.ones(dim)
        a = true + rng.normal(size=dim) / math.sqrt(batch)
        moved = true - lr * a
        b = moved + rng.normal(size=dim) / math.sqrt(batch)
        one = consecutive_differences(float(a @ a), float(b @ b), float(a @ b), batch=batch)
        found.append((one.signal, one.noise))
        drift.append(batch * float((moved - true) @ (moved - true)) / 2)
    signal, noise = np.mean(found, axis=0)
    assert signal == pytest.approx((1 - lr) * dim - lr * dim / batch, rel=0.01)
    assert noise == pytest.approx(dim + lr * dim + np.mean(drift), rel=0.01)


@pytest.mark.parametrize("count", [0, 1])
def test_one_small_batch_tells_nothing_of_noise(count: int) -> None:
    with pytest.raises(ConfigError, match="count is"):
        estimate(2.0, 1.0, count=count, batch=8)


@pytest.mark.parametrize("batch", [0, -4, math.nan, math.inf])
def test_a_batch_without_samples_is_refused(batch: float) -> None:
    with pytest.raises(ConfigError, match="batch is"):
        estimate(2.0, 1.0, count=2, batch=batch)
    with pytest.raises(ConfigError, match="batch is"):
        consecutive_differences(2.0, 1.0, 0.5, batch=batch)


@given(scale=st.floats(0.01, 100), signal=positive, noise=positive, base=st.integers(1, 4096))
def test_gain_is_adascales_formula(scale: float, signal: float, noise: float, base: int) -> None:
    found = gain(scale, Moments(signal, noise), base_batch=base)
    assert found == pytest.approx(adascale_gain(scale, signal=signal, noise=noise, base_batch=base), rel=1e-9)
    assert found == pytest.approx(
        mean_gain_of_two_batches(scale, signal=signal, noise=noise, base_batch=base), rel=1e-9
    )


@given(scale=scales, moments=st.none() | moments, base=st.integers(1, 10**6))
def test_gain_lies_between_one_and_scale_whatever_the_moments(scale: float, moments: Moments | None, base: int) -> None:
    low, high = sorted((1.0, scale))
    assert low <= gain(scale, moments, base_batch=base) <= high


@given(moments=st.none() | moments, base=st.integers(1, 10**6))
def test_a_base_batch_gains_exactly_one(moments: Moments | None, base: int) -> None:
    assert gain(1.0, moments, base_batch=base) == 1.0


@given(smaller=scales, larger=scales, moments=moments)
def test_a_larger_batch_never_gains_less(smaller: float, larger: float, moments: Moments) -> None:
    smaller, larger = sorted((smaller, larger))
    gains = [gain(scale, moments, base_batch=32) for scale in (smaller, larger)]
    assert gains[0] <= gains[1] * (1 + 1e-12)


@pytest.mark.parametrize("scale", [0.25, 1.0, 7.0])
@pytest.mark.parametrize(
    ("signal", "noise", "expected"),
    [
        (0.0, 5.0, "scale"),
        (-1.0, 5.0, "scale"),
        (5.0, 0.0, "one"),
        (5.0, -1.0, "one"),
        (0.0, 0.0, "one"),
        (-1.0, -1.0, "one"),
        (1.0, math.inf, "scale"),
        (1e308, 1e-308, "one"),
        (5e-324, 1e308, "scale"),
    ],
)
def test_gain_is_defined_at_the_edges(scale: float, signal: float, noise: float, expected: str) -> None:
    found = gain(scale, Moments(signal, noise), base_batch=32)
    assert found == pytest.approx(scale if expected == "scale" else 1.0)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_gain_refuses_a_scale_that_is_none(scale: float) -> None:
    with pytest.raises(ConfigError, match="scale is"):
        gain(scale, None, base_batch=32)


def test_gain_refuses_moments_that_are_no_numbers() -> None:
    with pytest.raises(ConfigError, match="moments is"):
        gain(2.0, Moments(math.nan, 1.0), base_batch=32)


@given(batch=st.integers(1, 10**6), base=st.integers(1, 10**6), signal=positive, noise=st.floats(0, 1e6))
def test_efficiency_is_gain_per_sample(batch: int, base: int, signal: float, noise: float) -> None:
    known = Moments(signal, noise)
    found = efficiency(batch, base_batch=base, noise_scale=known.noise_scale)
    assert found * batch / base == pytest.approx(gain(batch / base, known, base_batch=base), rel=1e-6)


def test_every_sample_counts_the_same_where_there_is_only_noise() -> None:
    assert efficiency(4096, base_batch=32, noise_scale=math.inf) == 1.0
    assert efficiency(4096, base_batch=32, noise_scale=0.0) == 32 / 4096


@pytest.mark.parametrize("noise_scale", [-1.0, math.nan])
def test_efficiency_refuses_a_noise_scale_that_is_none(noise_scale: float) -> None:
    with pytest.raises(ConfigError, match="noise_scale is"):
        efficiency(64, base_batch=32, noise_scale=noise_scale)
