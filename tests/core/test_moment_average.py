"""Moments smoothed over samples, and whether their interval keeps its promise."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swell.core.moment_average import RECENT, WINDOW, MomentAverage, ratio_interval, window_of
from swell.core.types import Moments, NoiseEstimate
from swell.errors import CheckpointError, ConfigError
from tests.reference import moments as slow

BASE = 16
observations = st.lists(
    st.tuples(st.floats(-10, 100), st.floats(0, 1000), st.integers(1, 500), st.integers(0, 2000)),
    min_size=1,
    max_size=12,
)


def averaged(
    observed: list[tuple[float, float, int, int]], *, window: float = 30.0, share: float = math.inf
) -> MomentAverage:
    average = MomentAverage(base_batch=BASE, window=window, share=share)
    for signal, noise, batch, unmeasured in observed:
        average.update_moments([Moments(signal, noise)], batch=batch, samples_between=batch + unmeasured)
    return average


def estimated(average: MomentAverage) -> NoiseEstimate:
    found = average.estimate()
    assert found is not None
    return found


def remembered(observed: list[tuple[float, float, int, int]]) -> list[slow.Observed]:
    return [slow.Observed(signal, noise, batch, batch + more) for signal, noise, batch, more in observed]


@given(observed=observations, share=st.sampled_from([math.inf, 0.5, RECENT]))
def test_smoothing_weighs_by_samples_and_fades_by_samples(
    observed: list[tuple[float, float, int, int]], share: float
) -> None:
    total = estimated(averaged(observed, share=share)).total
    by = slow.weights(remembered(observed), memory=30.0 * BASE, share=share)
    assert total.signal == pytest.approx(slow.weighted_mean([o[0] for o in observed], by), rel=1e-9, abs=1e-9)
    assert total.noise == pytest.approx(slow.weighted_mean([o[1] for o in observed], by), rel=1e-9, abs=1e-9)


def test_with_a_share_the_loud_start_of_a_run_is_soon_forgotten() -> None:
    start, rest = [(1000.0, 100.0, 16, 0)] * 5, [(1.0, 100.0, 16, 0)] * 95
    assert estimated(averaged(start + rest, window=1e6)).total.signal > 50
    assert estimated(averaged(start + rest, window=1e6, share=RECENT)).total.signal < 1.1


def test_the_window_is_a_thousand_base_batches_or_a_twelfth_of_a_shorter_run() -> None:
    assert window_of(None, base_batch=32) == window_of(32 * 10**6, base_batch=32) == WINDOW
    assert window_of(32 * 6000, base_batch=32) == 500
    assert window_of(32, base_batch=32) == 50


@given(observed=observations)
@example(observed=[(0.0, 0.0, 1, 0), (2.2250738585e-313, 0.0, 1, 0)])
def test_the_ends_of_the_interval_are_just_contradicted(observed: list[tuple[float, float, int, int]]) -> None:
    found = estimated(averaged(observed))
    low, high = found.interval
    assert 0 <= low <= high
    if len(observed) < 3:
        return
    *variances, effective = slow.covariances_of_means(remembered(observed), memory=30.0 * BASE)
    if effective < 1.6 or min(variances[:2]) < 1e-6:
        return
    known = {"signal": found.total.signal, "noise": found.total.noise, "variances": tuple(variances)}
    for end in (low, high):
        if 0 < end < math.inf:
            assert slow.contradiction(end, **known) == pytest.approx(slow.quantile(effective), rel=1e-3)
    if high < math.inf and found.total.noise > 0:
        assert low <= found.total.noise_scale <= high
        assert found.total.signal / math.sqrt(variances[0]) >= slow.quantile(effective) * (1 - 1e-6)


@given(
    signal=st.floats(-50, 50),
    noise=st.floats(0, 50),
    spreads=st.tuples(st.floats(0.01, 10), st.floats(0.01, 10)),
    correlation=st.floats(-0.99, 0.99),
    ratio=st.floats(0, 100),
)
def test_the_interval_holds_the_ratios_that_are_not_contradicted(
    signal: float, noise: float, spreads: tuple[float, float], correlation: float, ratio: float
) -> None:
    variances = (spreads[0] ** 2, spreads[1] ** 2, correlation * spreads[0] * spreads[1])
    low, high = ratio_interval(noise, signal, variances=variances, quantile=2.0)
    how = slow.contradiction(ratio, signal=signal, noise=noise, variances=variances)
    if how < 2.0 - 1e-6:
        assert low * (1 - 1e-6) <= ratio <= high * (1 + 1e-6)
    elif how > 2.0 + 1e-6 and noise > 0 and signal > 2 * spreads[0]:  # where the interval is one piece and bounded
        assert not low * (1 + 1e-6) < ratio < high * (1 - 1e-6)


@given(factor=st.floats(1e-40, 1e40), observed=observations)
def test_units_of_the_gradient_do_not_matter(factor: float, observed: list[tuple[float, float, int, int]]) -> None:
    plain = estimated(averaged(observed))
    scaled = estimated(averaged([(factor * s, factor * n, b, k) for s, n, b, k in observed]))
    if plain.total.signal > 1e-3 and plain.interval[1] < 1e6:
        assert scaled.total.noise_scale == pytest.approx(plain.total.noise_scale, rel=1e-6)
        assert scaled.interval == pytest.approx(plain.interval, rel=1e-3, abs=1e-9)


def test_noise_free_gradients_have_noise_scale_zero_for_sure() -> None:
    found = estimated(averaged([(2.0, 0.0, 16, 0)] * 5))
    assert found.total.noise_scale == 0.0
    assert found.interval == (0.0, 0.0)


def test_a_signal_that_is_not_significant_leaves_the_noise_scale_unbounded() -> None:
    found = estimated(averaged([(1.0, 5.0, 16, 0), (-0.9, 5.5, 16, 0), (0.3, 4.5, 16, 0)]))
    assert found.interval[1] == math.inf
    assert not found.sure


def test_a_significantly_negative_signal_says_nothing() -> None:
    found = estimated(averaged([(-1.0, 5.0, 16, 0), (-1.1, 5.5, 16, 0), (-1.05, 4.5, 16, 0)] * 5))
    assert found.interval == (0.0, math.inf)
    assert found.total.noise_scale == math.inf
    assert not found.sure


def test_nothing_is_known_before_the_first_observation_and_little_after_it() -> None:
    average = MomentAverage(base_batch=BASE)
    assert average.estimate() is None
    average.update([(5.0, 2.0)], count=4, batch=8)
    found = estimated(average)
    assert found.total == Moments(signal=1.0, noise=8.0)
    assert found.interval == (0.0, math.inf)
    assert found.observations == 1


@given(groups=st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=5))
def test_the_whole_gradient_is_the_sum_of_its_groups(groups: list[tuple[float, float]]) -> None:
    grouped, whole = MomentAverage(base_batch=BASE), MomentAverage(base_batch=BASE)
    for step in range(4):
        norms = [(small + step, big) for small, big in groups]
        grouped.update(norms, count=4, batch=32)
        whole.update([(sum(small for small, _ in norms), sum(big for _, big in norms))], count=4, batch=32)
    found, expected = estimated(grouped), estimated(whole)
    assert len(found.groups) == len(groups)
    assert found.total.signal == pytest.approx(expected.total.signal, rel=1e-9, abs=1e-9)
    assert found.total.noise == pytest.approx(expected.total.noise, rel=1e-9, abs=1e-9)
    assert found.total.signal == pytest.approx(sum(g.signal for g in found.groups))


@given(bad=st.sampled_from([math.nan, math.inf, -math.inf, 1e200]), place=st.integers(0, 3))
def test_figures_that_are_not_finite_are_dropped_and_counted(bad: float, place: int) -> None:
    average = MomentAverage(base_batch=BASE)
    average.update([(5.0, 2.0), (6.0, 3.0)], count=4, batch=8)
    before = estimated(average)
    figures = [5.0, 2.0, 6.0, 3.0]
    figures[place] = bad
    average.update([(figures[0], figures[1]), (figures[2], figures[3])], count=4, batch=8)
    assert average.dropped == 1
    assert average.observations == 1
    assert average.estimate() == before


def test_samples_of_a_dropped_observation_still_make_older_ones_fade() -> None:
    with_dropped = averaged([(1.0, 5.0, 16, 0), (math.nan, 5.0, 400, 0), (3.0, 7.0, 16, 0)])
    thinned = averaged([(1.0, 5.0, 16, 0), (3.0, 7.0, 16, 400)])
    assert estimated(with_dropped).total == estimated(thinned).total


@given(observed=observations, cut=st.integers(0, 12))
def test_an_average_goes_on_from_its_saved_state(observed: list[tuple[float, float, int, int]], cut: int) -> None:
    first = averaged(observed[:cut])
    resumed = MomentAverage(base_batch=BASE, window=30.0)
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for signal, noise, batch, more in observed[cut:]:
        resumed.update_moments([Moments(signal, noise)], batch=batch, samples_between=batch + more)
    assert resumed.estimate() == averaged(observed).estimate()


def test_a_saved_state_does_not_change_while_the_average_goes_on() -> None:
    average = averaged([(1.0, 5.0, 16, 0)])
    state = average.state_dict()
    kept = json.dumps(state)
    average.update_moments([Moments(2.0, 3.0)], batch=16)
    assert json.dumps(state) == kept


@pytest.mark.parametrize("state", [{}, {"observations": "many"}, None, [1, 2]])
def test_a_foreign_state_is_refused_and_changes_nothing(state: object) -> None:
    average = averaged([(1.0, 5.0, 16, 0)])
    before = average.state_dict()
    with pytest.raises(CheckpointError, match="state_dict"):
        average.load_state_dict(state)  # pyright: ignore[reportArgumentType]
    with pytest.raises(CheckpointError, match="1 numbers instead of 3"):
        average.load_state_dict({**before, "scatter": [1.0]})
    assert average.state_dict() == before


changes = st.one_of(
    st.tuples(st.just("update"), st.floats(-10, 100) | st.just(math.nan), st.floats(0, 1000), st.integers(1, 500)),
    st.tuples(st.just("window"), st.floats(0.5, 100)),
    st.tuples(st.just("share"), st.floats(0.1, 10)),
    st.tuples(st.just("load"), st.integers(0, 5)),
    st.tuples(st.just("reset")),
)


@given(history=st.lists(changes, max_size=20))
def test_an_estimate_that_was_kept_equals_one_that_is_computed_again(history: list[tuple]) -> None:
    average = MomentAverage(base_batch=BASE, window=30.0)
    saved = [average.state_dict()]
    for change, *values in history:
        if change == "update":
            average.update_moments([Moments(values[0], values[1]), Moments(1.0, 2.0)], batch=values[2])
            saved.append(average.state_dict())
        elif change == "load":
            average.load_state_dict(saved[values[0] % len(saved)])
        elif change == "reset":
            average.reset()
        else:
            setattr(average, change, values[0])
        fresh = MomentAverage(base_batch=BASE)
        fresh.load_state_dict(average.state_dict())
        assert average.estimate() == fresh.estimate()
        assert average.estimate() is average.estimate(), "it is computed once"


def test_reset_forgets_all_but_the_dropped() -> None:
    average = averaged([(1.0, 5.0, 16, 0), (math.nan, 5.0, 16, 0)])
    average.reset()
    assert average.estimate() is None
    assert (average.observations, average.dropped) == (0, 1)
    average.update_moments([Moments(1.0, 2.0), Moments(3.0, 4.0)], batch=8)
    assert len(estimated(average).groups) == 2


@pytest.mark.parametrize(
    ("groups", "batch", "between"),
    [(2, 8, 8), (0, 8, 8), (1, 0, 8), (1, -1, 8), (1, 8, 7), (1, 8, math.inf), (1, math.nan, 8)],
)
def test_an_observation_that_does_not_fit_is_refused(groups: int, batch: float, between: float) -> None:
    average = averaged([(1.0, 5.0, 16, 0)])
    with pytest.raises(ConfigError):
        average.update_moments([Moments(1.0, 1.0)] * groups, batch=batch, samples_between=between)
    assert average.observations == 1


@pytest.mark.parametrize(
    "settings",
    [{"base_batch": 0}, {"base_batch": 8, "window": 0}, {"base_batch": 8, "window": -1}, {"base_batch": 8, "share": 0}],
)
def test_settings_that_remember_nothing_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        MomentAverage(**settings)


SizesOf = Callable[[np.random.Generator], np.ndarray]


def trained(
    sizes_of: SizesOf, *, seed: int, steps: int, variances: np.ndarray, signal: float, window: float = 1000.0
) -> NoiseEstimate:
    """An average over steps of Gaussian gradients with this covariance and this squared norm of the mean."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=len(variances))
    true *= math.sqrt(signal) / np.linalg.norm(true)
    average = MomentAverage(base_batch=BASE, window=window)
    for _ in range(steps):
        sizes = sizes_of(rng)
        gradients = true + rng.normal(size=(len(sizes), len(true))) * np.sqrt(variances / sizes[:, None])
        weights = sizes / sizes.sum()
        figures = (float(weights @ (gradients**2).sum(axis=1)), float(((weights @ gradients) ** 2).sum()))
        average.update([figures], count=len(sizes), batch=int(sizes.sum()))
    return estimated(average)


def even(count: int, size: int) -> SizesOf:
    return lambda rng: np.full(count, size)


def uneven(count: int, most: int) -> SizesOf:
    return lambda rng: rng.integers(1, most, size=count, endpoint=True)


SPECTRUM = 1.0 / np.arange(1, 41)  # a few directions hold much of the noise, as in networks
NOISE = float(SPECTRUM.sum())


@pytest.mark.parametrize(
    "sizes_of",
    [even(8, 8), even(16, 2), uneven(8, 16), uneven(24, 6)],
    ids=["8 of 8", "16 of 2", "8 of 1 to 16", "24 of 1 to 6"],
)
def test_eight_small_batches_give_the_noise_scale_within_five_percent_after_200_steps(sizes_of: SizesOf) -> None:
    for seed in range(5):
        found = trained(sizes_of, seed=seed, steps=200, variances=SPECTRUM, signal=1.0)
        assert found.total.noise == pytest.approx(NOISE, rel=0.05)
        assert found.total.noise_scale == pytest.approx(NOISE, rel=0.05)
        assert found.sure


@pytest.mark.parametrize(
    ("sizes_of", "steps", "window"),
    [
        (even(2, 16), 30, 1000.0),
        (even(8, 8), 10, 1000.0),
        (uneven(8, 16), 30, 1000.0),
        (even(4, 8), 60, 20.0),  # an average that forgets within the trial
    ],
    ids=["2 of 16", "8 of 8, 10 steps", "8 of 1 to 16", "short window"],
)
def test_the_interval_covers_the_truth_about_as_often_as_it_says(sizes_of: SizesOf, steps: int, window: float) -> None:
    trials = 250
    covered = 0
    for seed in range(trials):
        found = trained(sizes_of, seed=seed, steps=steps, variances=SPECTRUM, signal=0.5, window=window)
        low, high = found.interval
        covered += low <= NOISE / 0.5 <= high
    assert covered / trials >= 0.88, f"{covered} of {trials}"


def test_the_interval_covers_the_truth_where_the_batch_grows() -> None:
    covered = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        true = np.full(40, math.sqrt(0.5 / 40))
        average = MomentAverage(base_batch=BASE)
        for step in range(40):
            size = 4 * 2 ** (step // 8)
            gradients = true + rng.normal(size=(2, 40)) * np.sqrt(SPECTRUM / size)
            figures = (float((gradients**2).sum() / 2), float((gradients.mean(axis=0) ** 2).sum()))
            average.update([figures], count=2, batch=2 * size)
        low, high = estimated(average).interval
        covered += low <= NOISE / 0.5 <= high
    assert covered / 200 >= 0.88, f"{covered} of 200"
