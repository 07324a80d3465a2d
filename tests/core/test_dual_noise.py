"""Noise in a dual norm: the formulas, and whether simulated gradients give back what they were made with."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.dual_noise import DualAverage, Pair, dual_moments, mean_of_pairs
from swell.core.moments import gain
from swell.core.types import NoiseEstimate
from swell.errors import CheckpointError, ConfigError

BASE = 16
positive = st.floats(1e-3, 1e3)
pairs = st.lists(
    st.tuples(st.floats(-10, 100), st.floats(0, 1000), st.integers(1, 64), st.integers(0, 500)), min_size=1, max_size=8
)

Two = tuple[np.ndarray, np.ndarray]

# Simulated gradients


def direction(gradient: np.ndarray) -> np.ndarray:
    """The sign of a vector's elements, the polar factor of a matrix."""
    if gradient.ndim == 1:
        return np.sign(gradient)
    u, _, v = np.linalg.svd(gradient, full_matrices=False)
    return u @ v


def norm(gradient: np.ndarray) -> float:
    return float((direction(gradient) * gradient).sum())


def two(truth: np.ndarray, sigma: np.ndarray | float, batch: int, draw: np.random.Generator) -> Two:
    first, second = (truth + sigma * draw.standard_normal(truth.shape) / math.sqrt(batch) for _ in range(2))
    return first, second


def pair_of(first: np.ndarray, second: np.ndarray, batch: int) -> Pair:
    reach = float((direction(first) * second + direction(second) * first).sum()) / 2
    return Pair(groups=((reach, norm(first - second) * math.sqrt(batch)),), root=math.sqrt(batch))


def estimated(average: DualAverage) -> NoiseEstimate:
    found = average.estimate()
    assert found is not None
    return found


def measure(truth: np.ndarray, sigma: np.ndarray | float, batches: Sequence[int], *, steps: int = 300) -> NoiseEstimate:
    """The estimate after steps of small batches that take turns."""
    average, draw = DualAverage(base_batch=BASE, window=1e6), np.random.default_rng(1)
    for step in range(steps):
        batch = batches[step % len(batches)]
        average.update(pair_of(*two(truth, sigma, batch, draw), batch), batch=BASE)
    return estimated(average)


def gaussian(*shape: int) -> np.ndarray:
    """A true gradient in which all directions matter; a hundredth of the noise of one sample, squared."""
    return 0.1 * np.random.default_rng(0).standard_normal(shape)


SHAPES = [(2000,), (24, 24), (12, 48)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("batches", [[4], [32], [256], [32, 64], [64, 256], [4, 32, 256]], ids=str)
def test_the_noise_scale_is_found_at_any_batch_in_either_norm(shape: tuple[int, ...], batches: list[int]) -> None:
    """Noise and signal have equal squared Euclidean norms at 100 samples, and then in the dual norms too."""
    found = measure(gaussian(*shape), 1.0, batches)
    far_apart = max(batches) > 8 * min(batches)  # the law is exact for each of them, and for their average nearly so
    assert found.total.noise_scale == pytest.approx(100, rel=0.3 if far_apart else 0.1)
    low, high = found.interval
    assert low <= found.total.noise_scale <= high


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_noise_is_the_squared_dual_norm_of_one_samples_noise(shape: tuple[int, ...]) -> None:
    noise = measure(gaussian(*shape), 1.0, [8, 128]).total.noise
    of_noise = np.mean([norm(np.random.default_rng(seed).standard_normal(shape)) for seed in range(50)])
    assert math.sqrt(noise) == pytest.approx(float(of_noise), rel=0.01)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_root_of_the_gain_foretells_what_a_larger_step_reaches(shape: tuple[int, ...]) -> None:
    truth = gaussian(*shape)
    for batch in (8, 32, 128):
        moments = measure(truth, 1.0, [batch]).total
        draw, reached = np.random.default_rng(2), []
        for size in (batch, 4 * batch):
            steps = [direction(two(truth, 1.0, size, draw)[0]) for _ in range(300)]
            reached.append(float(np.mean([(step * truth).sum() for step in steps])))
        assert math.sqrt(gain(4.0, moments, base_batch=batch)) == pytest.approx(reached[1] / reached[0], rel=0.1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_reach_is_not_inflated_by_noise_while_the_norm_of_the_mean_is(shape: tuple[int, ...]) -> None:
    truth, draw, batch = gaussian(*shape), np.random.default_rng(3), 8
    reaches, expected, norms = [], [], []
    for _ in range(400):
        first, second = two(truth, 1.0, batch, draw)
        reaches.append(pair_of(first, second, batch).groups[0][0])
        expected.append(float((direction(two(truth, 1.0, batch, draw)[0]) * truth).sum()))  # <u(g), G>, of other draws
        norms.append(norm((first + second) / 2))
    error = (np.std(reaches) + np.std(expected)) / math.sqrt(len(reaches))
    assert abs(np.mean(reaches) - np.mean(expected)) < 4 * error
    assert np.mean(norms) > 2 * norm(truth) > 2 * np.mean(reaches)
    signal = measure(truth, 1.0, [batch]).total.signal
    assert math.sqrt(signal) == pytest.approx(norm(truth), rel=0.1)


def test_a_gradient_without_signal_has_no_finite_noise_scale() -> None:
    found = measure(np.zeros(500), 1.0, [8], steps=60)
    assert found.interval[1] == math.inf
    assert not found.sure


# Formulas


@given(reach=positive, spread=positive, batch=st.floats(1, 1e4))
def test_the_moments_solve_the_law_they_come_from(reach: float, spread: float, batch: float) -> None:
    moments = dual_moments(reach, spread, batch=batch)
    assert moments.noise == pytest.approx(spread**2 / 2)
    assert moments.signal / (1 + moments.noise_scale / batch) == pytest.approx(reach**2, rel=1e-9)


@given(reach=positive, spread=positive, batch=st.floats(1, 1e4), scale=st.floats(1e-6, 1e6))
def test_the_noise_scale_does_not_depend_on_the_gradients_unit(
    reach: float, spread: float, batch: float, scale: float
) -> None:
    one, other = dual_moments(reach, spread, batch=batch), dual_moments(scale * reach, scale * spread, batch=batch)
    assert other.noise_scale == pytest.approx(one.noise_scale, rel=1e-9)


@given(spread=positive, batch=st.floats(1, 1e4), ratios=st.tuples(positive, positive))
def test_the_noise_scale_grows_with_the_spread_over_the_reach(
    spread: float, batch: float, ratios: tuple[float, float]
) -> None:
    low, high = sorted(ratios)
    scales = [dual_moments(spread / ratio, spread, batch=batch).noise_scale for ratio in (low, high)]
    assert scales[0] <= scales[1] * (1 + 1e-9)


@pytest.mark.parametrize("reach", [-1.0, 0.0, 1e-200, 5e-324])  # the squares of the last two are 0
def test_a_reach_that_is_not_positive_or_vanishes_when_squared_has_no_signal(reach: float) -> None:
    assert dual_moments(reach, 2.0, batch=4).signal == 0
    assert dual_moments(reach, 2.0, batch=4).noise_scale == math.inf


def test_a_batch_of_nothing_has_no_moments() -> None:
    with pytest.raises(ConfigError, match="batch is 0"):
        dual_moments(1.0, 1.0, batch=0)


# The average


def averaged(observed: Sequence[tuple[float, float, int, int]], **settings: float) -> DualAverage:
    average = DualAverage(base_batch=BASE, **{"window": 30.0, **settings})
    for reach, spread, batch, unmeasured in observed:
        pair = Pair(groups=((reach, spread), (2 * reach, spread / 2)), root=math.sqrt(batch))
        average.update(pair, batch=2 * batch, samples_between=2 * batch + unmeasured)
    return average


@given(observed=pairs)
def test_reach_and_spread_of_groups_add_up(observed: list[tuple[float, float, int, int]]) -> None:
    average, alone = averaged(observed), DualAverage(base_batch=BASE, window=30.0)
    for reach, spread, batch, unmeasured in observed:
        pair = Pair(groups=((3 * reach, 1.5 * spread),), root=math.sqrt(batch))
        alone.update(pair, batch=2 * batch, samples_between=2 * batch + unmeasured)
    one, other = estimated(average), estimated(alone)
    assert one.total.signal == pytest.approx(other.total.signal, rel=1e-6, abs=1e-9)
    assert one.total.noise == pytest.approx(other.total.noise, rel=1e-6, abs=1e-9)
    assert one.observations == other.observations == len(observed)


@given(observed=pairs)
def test_the_interval_holds_the_estimate(observed: list[tuple[float, float, int, int]]) -> None:
    found = estimated(averaged(observed))
    low, high = found.interval
    assert 0 <= low <= high
    if found.total.signal > 0 and found.total.noise > 0 and math.isfinite(high):
        assert low * (1 - 1e-6) <= found.total.noise_scale <= high * (1 + 1e-6)


@given(observed=pairs)
def test_a_saved_average_goes_on_as_if_nothing_had_been(observed: list[tuple[float, float, int, int]]) -> None:
    whole, again = averaged(observed), DualAverage(base_batch=BASE, window=30.0)
    again.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    for average in (whole, again):
        average.update(Pair(groups=((1.0, 2.0), (3.0, 4.0)), root=2.0), batch=8)
    assert again.estimate() == whole.estimate()


def test_figures_that_are_not_finite_are_dropped_and_counted() -> None:
    average = averaged([(1.0, 2.0, 4, 0)])
    before = average.estimate()
    for pair in (
        Pair(groups=((math.nan, 1.0), (1.0, 1.0)), root=2.0),
        Pair(groups=((1.0, math.inf), (1.0, 1.0)), root=2.0),
        Pair(groups=((1.0, 1.0), (1.0, 1.0)), root=math.nan),
    ):
        average.update(pair, batch=8)
    assert (average.observations, average.dropped) == (1, 3)
    assert average.estimate() == before
    average.update(Pair(groups=((1.0, 2.0), (2.0, 1.0)), root=2.0), batch=8)
    assert average.observations == 2 and estimated(average).total.signal > 0


def test_an_estimate_is_made_once_until_something_changes() -> None:
    average = averaged([(1.0, 2.0, 4, 0)])
    assert average.estimate() is average.estimate()
    average.reset()
    assert average.estimate() is None and average.observations == 0


def test_settings_are_those_of_both_averages() -> None:
    average = averaged([(1.0, 2.0, 4, 0)])
    average.window, average.share = 7.0, 0.5
    assert (average.window, average.share) == (7.0, 0.5)
    with pytest.raises(ConfigError, match="window is 0"):
        average.window = 0


def test_a_state_of_something_else_is_refused_and_changes_nothing() -> None:
    average = averaged([(1.0, 2.0, 4, 0)])
    before = average.estimate()
    for state in ({}, {"figures": {}}, {"figures": averaged([(5.0, 1.0, 4, 0)]).state_dict()["figures"]}):
        with pytest.raises(CheckpointError, match="not a dual average's"):
            average.load_state_dict(state)
    assert average.estimate() == before


def test_figures_of_replicas_are_divided_by_the_replicas_that_compared_something() -> None:
    assert mean_of_pairs([6.0], [9.0], root=12.0, count=3.0) == Pair(groups=((2.0, 3.0),), root=4.0)
