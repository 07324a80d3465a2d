"""Which steps are measured or split: all at the start, then few, more where the learning rate depends on them."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.moment_average import WINDOW
from swell.errors import ConfigError
from swell.loop.statistics import Statistics, as_statistics

LONG = 20_000  # steps: where rates have settled
scales = st.floats(0.1, 200)
windows = st.floats(10, 2000)


def distances(steps: list[int]) -> set[int]:
    return {later - earlier for earlier, later in pairwise(steps)}


@given(warm_up=st.integers(0, 300), every=st.integers(1, 50), scale=scales, window=windows, awaited=st.booleans())
def test_every_step_of_the_warm_up_is_measured_and_then_at_least_one_in_every(
    warm_up: int, every: int, scale: float, window: float, awaited: bool
) -> None:
    settings = Statistics(warm_up=warm_up, every=every)
    measured = [step for step in range(1000) if settings.measures(step, scale, window, awaited=awaited)]
    assert measured[:warm_up] == list(range(warm_up))
    apart = distances([step for step in measured if step >= warm_up])
    assert len(apart) <= 1 and all(distance <= every for distance in apart)
    if scale <= 1 and not awaited:
        assert apart == {every}
    else:
        assert all(distance >= min(4, every) for distance in apart)  # never more than one in 4, unless asked for


@given(scale=st.floats(1.01, 200), window=windows)
def test_above_the_base_batch_the_window_holds_sixteen_measured_steps_or_one_in_four(
    scale: float, window: float
) -> None:
    settings = Statistics(warm_up=0, every=10**6)
    (apart,) = distances([step for step in range(1000) if settings.measures(step, scale, window)])
    assert apart == max(4, round(window / 16 / scale))


def test_while_figures_are_awaited_one_step_in_four_is_measured_and_one_in_eight_split() -> None:
    settings = Statistics()
    steps = range(LONG, LONG + 80)
    assert [step for step in steps if settings.measures(step, awaited=True)] == list(steps[::4])
    assert [step for step in steps if settings.splits(step, awaited=True)] == list(steps[::8])


@given(split_every=st.integers(1, 600), scale=scales, window=windows, awaited=st.booleans())
def test_splits_grow_rarer_up_to_one_in_split_every(
    split_every: int, scale: float, window: float, awaited: bool
) -> None:
    settings = Statistics(split_every=split_every)
    split = [step for step in range(6000) if settings.splits(step, scale, window, awaited=awaited)]
    assert split[0] == 0 and max(distances(split), default=0) <= split_every
    if scale <= 1 and not awaited:
        apart = [later - earlier for earlier, later in pairwise(split)]
        assert apart == sorted(apart)
        assert apart[-1] > split_every / 2  # it doubles as long as it may
        assert all(distance * 40 >= step for step, distance in zip(split, apart, strict=False) if distance < apart[-1])


@given(scale=st.floats(1.01, 200), window=windows)
def test_above_the_base_batch_the_window_holds_twelve_splits_or_one_in_twenty(scale: float, window: float) -> None:
    settings = Statistics()
    split = [step for step in range(LONG, LONG + 2000) if settings.splits(step, scale, window)]
    assert distances(split) == {min(256, max(20, round(window / 12 / scale)))}


@pytest.mark.parametrize("settings", [Statistics(split_every=None), Statistics(alone="differences")])
def test_no_step_is_split_where_that_is_switched_off(settings: Statistics) -> None:
    assert not any(settings.splits(step, 8.0, WINDOW, awaited=True) for step in range(1000))


@given(warm_up=st.integers(0, 50), every=st.integers(1, 30))
def test_halves_come_in_pairs_one_right_after_the_other(warm_up: int, every: int) -> None:
    half_of = Statistics(alone="differences", warm_up=warm_up, every=every).half_of
    assert half_of is not None
    halves = [half_of(step) for step in range(300)]
    firsts = [step for step in range(299) if halves[step] == 1]
    assert halves[0] == 1 and set(halves) <= {0, 1, 2}
    later = [step for step in firsts if step >= warm_up]
    assert distances(later) == {max(2, every)}
    assert all(halves[step + 1] == 2 for step in later)
    assert all(halves[step] == step % 2 + 1 for step in range(warm_up))


def test_without_differences_no_step_is_half_of_a_pair() -> None:
    assert Statistics().half_of is None


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"every": 0}, "every"),
        ({"every": 2.5}, "every"),
        ({"warm_up": -1}, "warm_up"),
        ({"alone": "halves"}, "alone"),
        ({"split_every": 0}, "split_every"),
        ({"window": 0}, "window"),
        ({"window": math.inf}, "window"),
        ({"window": math.nan}, "window"),
    ],
)
def test_settings_that_mean_nothing_are_refused_by_name(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Statistics(**settings)


def test_statistics_may_be_given_as_a_switch_a_number_or_in_full() -> None:
    settings = Statistics(every=3, budget=None)
    assert as_statistics(True) == Statistics()
    assert as_statistics(False) is None
    assert as_statistics(3) == settings and as_statistics(settings) is settings
    with pytest.raises(ConfigError, match="statistics"):
        as_statistics(0)
