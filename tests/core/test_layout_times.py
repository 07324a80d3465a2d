"""Step times of layouts that take turns: bad moments do no harm, and how sure a figure is is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.layout_times import LayoutTimes, standard_error
from swell.core.types import StepTimes


def step(step_s: float, micro: int = 8) -> StepTimes:
    return StepTimes(replicas=1, nodes=1, micro_batch=micro, accumulation=1, step_s=step_s)


def collected(turns: list[list[float]]) -> LayoutTimes:
    times = LayoutTimes()
    for turn, seconds in enumerate(turns):
        for value in seconds:
            times.add(step(value), batch=8, turn=turn)
    return times


def test_a_turn_in_a_bad_moment_counts_as_one_however_many_steps_it_had() -> None:
    times = collected([[0.1], [0.1], [9.0, 9.0, 9.0, 9.0, 9.0, 9.0], [0.1], [0.1], [0.1], [0.1]])
    (found,) = times.measured()
    assert (found.batch, found.summary.step_s, found.summary.count) == (8, 0.1, 12)


def test_a_few_turns_are_never_sure_and_steady_ones_soon_are() -> None:
    assert not collected([[0.1]] * 4).sure(1)
    assert collected([[0.1]] * 5).sure(1)
    assert not collected([[0.1]] * 5).sure(2), "another layout was not measured yet"
    assert not collected([[0.1], [0.2]] * 5).sure(1)


def test_times_that_are_none_are_left_out() -> None:
    assert collected([[math.inf], [0.0], [math.nan]]).measured() == []


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=60), st.floats(0.1, 10.0))
def test_the_error_is_in_the_unit_of_the_values_and_infinite_for_few(values: list[float], unit: float) -> None:
    error = standard_error(values)
    assert (error == math.inf) == (len(values) < 5)
    if math.isfinite(error):
        assert 0 <= error <= (max(values) - min(values)) / 2
        assert standard_error([unit * value for value in values]) == pytest.approx(unit * error, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("count", [9, 25, 100])
def test_the_error_is_how_far_medians_of_so_many_stray(count: int) -> None:
    drawn = np.random.default_rng(0).exponential(size=(4000, count))
    estimate = np.mean([standard_error(row.tolist()) for row in drawn])
    assert estimate == pytest.approx(np.median(drawn, axis=1).std(), rel=0.2)
