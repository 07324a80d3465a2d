"""Fitting step times: what was measured is reproduced, what was not is predicted with an honest error."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swell.core.throughput import Params, fit, predict
from swell.core.types import StepSummary
from swell.errors import ConfigError

LAW = Params(alpha_c=0.02, beta_c=2e-4, alpha_r=0.01, beta_r=5e-4, alpha_n=0.03, beta_n=2e-3, gamma=1.8, alpha_s=2e-3)
GRID = [
    (replicas, nodes, micro, accumulation)
    for replicas, nodes in [(1, 1), (2, 1), (4, 1), (4, 2), (8, 2), (16, 4)]
    for micro in (16, 64, 256)
    for accumulation in (1, 3)
]
QUERIES = [(1, 1, 128, 2), (2, 1, 32, 1), (8, 1, 128, 1), (8, 4, 512, 1), (12, 3, 64, 4), (16, 2, 16, 1)]


def measured(law: Params, where=GRID, *, count: int = 16, scale: float = 1.0) -> list[StepSummary]:
    return [
        StepSummary(
            replicas=k, nodes=n, micro_batch=b, accumulation=a, step_s=scale * time(law, k, n, b, a), count=count
        )
        for k, n, b, a in where
    ]


def time(law: Params, replicas: int, nodes: int, micro_batch: int, accumulation: int) -> float:
    return float(predict(law, replicas=replicas, nodes=nodes, micro_batch=micro_batch, accumulation=accumulation))


def at(where):
    return dict(zip(("replicas", "nodes", "micro_batch", "accumulation"), np.array(where).T, strict=True))


def random_law(seed: int) -> Params:
    random = np.random.default_rng(seed)
    start = 10 ** random.uniform(-3, 0)
    return Params(
        alpha_c=start,
        beta_c=start / 10 ** random.uniform(0.5, 3),
        alpha_r=start * 10 ** random.uniform(-1.5, 0.5),
        beta_r=start * 10 ** random.uniform(-3, -1),
        alpha_n=start * 10 ** random.uniform(-1, 1),
        beta_n=start * 10 ** random.uniform(-3, -0.5),
        gamma=random.uniform(1, 6),
        alpha_s=start * 10 ** random.uniform(-2, 0),
    )


@pytest.mark.parametrize("seed", range(12))
def test_a_law_is_found_again_from_its_own_times(seed):
    law = random_law(seed)
    found = fit(measured(law))
    errors = np.abs(found.predict(**at(QUERIES)).step_s / [time(law, *query) for query in QUERIES] - 1)
    assert np.median(errors) < 0.03
    assert errors.max() < 0.25


@pytest.mark.parametrize("seed", range(4))
def test_times_that_jitter_and_stall_do_little_harm(seed):
    law, random = random_law(seed), np.random.default_rng(seed)
    points = [
        dataclasses.replace(point, step_s=point.step_s * math.exp(0.03 * random.standard_normal()))
        for point in measured(law)
    ]
    for spoiled in random.choice(len(points), size=3, replace=False):
        points[spoiled] = dataclasses.replace(points[spoiled], step_s=points[spoiled].step_s * 8)
    errors = np.abs(fit(points).predict(**at(QUERIES)).step_s / [time(law, *query) for query in QUERIES] - 1)
    assert np.median(errors) < 0.10


@given(scale=st.floats(1e-4, 1e4))
@settings(max_examples=15)
def test_a_machine_twice_as_slow_is_predicted_twice_as_slow(scale):
    plain, slower = fit(measured(LAW)), fit(measured(LAW, scale=scale))
    assert slower.predict(**at(QUERIES)).step_s == pytest.approx(scale * plain.predict(**at(QUERIES)).step_s, rel=0.01)


def test_where_it_was_measured_even_a_machine_that_is_not_linear_is_predicted_well():
    kneed = [
        StepSummary(replicas=1, nodes=1, micro_batch=b, accumulation=1, step_s=max(0.02, 2e-4 * b), count=32)
        for b in (16, 32, 64, 128, 256, 512)
    ]
    for point in kneed:
        time_s, error = fit(kneed).predict(replicas=1, nodes=1, micro_batch=point.micro_batch, accumulation=1)
        assert float(time_s) == pytest.approx(point.step_s, rel=0.03)
        assert error < 0.05


def test_with_one_micro_batch_half_of_the_time_is_taken_as_constant_and_the_error_says_so():
    found = fit(measured(LAW, [(1, 1, 64, 1)]))
    here, error_here = found.predict(replicas=1, nodes=1, micro_batch=64, accumulation=1)
    double, error = found.predict(replicas=1, nodes=1, micro_batch=128, accumulation=1)
    assert float(double / here) == pytest.approx(1.5, rel=0.03)
    assert error > 0.2 > 0.05 > error_here


def test_a_second_micro_batch_makes_the_prediction_sure():
    one = fit(measured(LAW, [(1, 1, 64, 1)]))
    two = fit(measured(LAW, [(1, 1, 64, 1), (1, 1, 16, 4)]))
    where = {"replicas": 1, "nodes": 1, "micro_batch": 128, "accumulation": 1}
    assert two.predict(**where).error < one.predict(**where).error / 2


def test_errors_fall_as_points_come_in_and_rise_with_the_distance():
    few, many = fit(measured(LAW, GRID[:4])), fit(measured(LAW))
    assert np.all(many.predict(**at(QUERIES)).error <= few.predict(**at(QUERIES)).error)
    far = many.predict(replicas=1, nodes=1, micro_batch=np.array([256, 4096, 65536]), accumulation=1).error
    assert np.all(np.diff(far) > 0)


@pytest.mark.parametrize("seed", range(6))
def test_most_errors_lie_within_two_of_the_errors_that_were_predicted(seed):
    random = np.random.default_rng(seed)
    law = random_law(seed)
    odd = [
        dataclasses.replace(point, step_s=point.step_s * math.exp(0.06 * random.standard_normal()))
        for point in measured(law, [(k, n, b, a) for k, n, b, a in GRID] + QUERIES)
    ]
    predicted = fit(odd[: len(GRID)][::2]).predict(
        **at([(p.replicas, p.nodes, p.micro_batch, p.accumulation) for p in odd])
    )
    misses = np.abs(np.log(predicted.step_s / [point.step_s for point in odd]))
    assert np.mean(misses < 2 * predicted.error) > 0.8


def test_a_link_that_was_never_measured_has_an_error_of_at_least_one_half():
    alone = fit(measured(LAW, [cell for cell in GRID if cell[0] == 1]))
    assert alone.predict(replicas=4, nodes=1, micro_batch=64, accumulation=1).error >= 0.5
    one_node = fit(measured(LAW, [cell for cell in GRID if cell[1] == 1]))
    assert one_node.predict(replicas=4, nodes=1, micro_batch=64, accumulation=1).error < 0.5
    assert one_node.predict(replicas=4, nodes=2, micro_batch=64, accumulation=1).error >= 0.5


@pytest.mark.parametrize("seed", range(6))
def test_between_nodes_exchange_is_slower_than_within_unless_measured_otherwise(seed):
    found = fit(measured(random_law(seed), [cell for cell in GRID if cell[1] == 1])).params
    assert found.alpha_n >= 1.0999 * found.alpha_r
    assert found.beta_n >= 1.0999 * found.beta_r


def test_timed_exchange_tells_computing_from_waiting():
    where = [(4, 1, 64, 1), (4, 1, 64, 2)]
    hidden = measured(LAW, where)
    computing = LAW.alpha_c + LAW.beta_c * 64
    timed = [dataclasses.replace(point, sync_s=point.step_s - point.accumulation * computing) for point in hidden]
    alone = time(LAW, 1, 1, 64, 1)
    where_alone = {"replicas": 1, "nodes": 1, "micro_batch": 64, "accumulation": 1}
    miss_timed, miss_hidden = (abs(math.log(fit(p).predict(**where_alone).step_s / alone)) for p in (timed, hidden))
    assert miss_timed < 0.1
    assert miss_timed <= miss_hidden + 0.01


def test_known_constants_stand_in_for_what_was_not_measured():
    few = measured(LAW, [(1, 1, 64, 1)])
    query = {"replicas": 8, "nodes": 2, "micro_batch": 256, "accumulation": 1}
    true = time(LAW, 8, 2, 256, 1)
    assert abs(fit(few, prior=LAW).predict(**query).step_s / true - 1) < 0.02
    assert abs(fit(few).predict(**query).step_s / true - 1) > 0.02


@given(
    st.lists(
        st.builds(
            StepSummary,
            replicas=st.integers(1, 64),
            nodes=st.integers(1, 8),
            micro_batch=st.integers(1, 4096),
            accumulation=st.integers(1, 64),
            step_s=st.floats(1e-5, 100),
            count=st.integers(1, 32),
            sync_s=st.just(0.0) | st.floats(0, 10),
        ),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=40)
def test_whatever_was_measured_predictions_are_finite_times_with_finite_errors(points):
    for prediction in (fit(points).predict(**at(QUERIES)), fit(points).predict(**at(GRID))):
        assert np.all(np.isfinite(prediction.step_s)) and np.all(prediction.step_s > 0)
        assert np.all(np.isfinite(prediction.error)) and np.all(prediction.error >= 0)


def test_the_same_points_give_the_same_fit():
    one, other = fit(measured(LAW)), fit(measured(LAW))
    assert one.params == other.params
    assert np.array_equal(one.predict(**at(QUERIES)).step_s, other.predict(**at(QUERIES)).step_s)


@pytest.mark.parametrize(
    "points",
    [
        [],
        measured(LAW, scale=0.0),
        measured(LAW, scale=math.nan),
        measured(LAW, scale=math.inf),
        measured(LAW, count=0),
    ],
    ids=["none", "zero", "nan", "infinite", "uncounted"],
)
def test_without_a_measured_time_there_is_nothing_to_fit(points):
    with pytest.raises(ConfigError, match=r"points has .* measurements"):
        fit(points)
