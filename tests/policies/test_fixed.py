"""A fixed batch is exact; with a tolerance it moves only as far as even shares need."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.errors import ConfigError
from swell.policies import Fixed
from tests.policies.observations import observations, seen
from tests.reference.policies import fixed_batch


@given(size=st.integers(1, 10**6), seen=observations())
def test_a_fixed_batch_is_the_same_everywhere(size, seen):
    assert Fixed(size).batch(seen) == size == Fixed(size).base


@given(size=st.integers(1, 400), percent=st.integers(1, 99), replicas=st.integers(1, 40), micro=st.integers(1, 12))
def test_with_a_tolerance_it_is_the_nearest_even_batch_in_the_band(size, percent, replicas, micro):
    policy = Fixed(size, tolerance=percent / 100, micro=micro)
    expected = fixed_batch(size, tolerance=Fraction(percent, 100), replicas=replicas, micro=micro)
    assert policy.batch(seen(replicas=replicas)) == expected


def test_ten_percent_of_a_thousand_feed_seven_replicas_evenly():
    policy = Fixed(1000, tolerance=0.1)
    assert [policy.batch(seen(replicas=n)) for n in (1, 3, 7, 16)] == [1000, 999, 1001, 1008]


def test_whole_micro_batches_come_before_even_shares():
    policy = Fixed(1000, tolerance=0.1, micro=32)
    assert policy.batch(seen(replicas=8)) == 1024
    assert policy.batch(seen(replicas=24)) == 1008  # 768 and 1536 are outside the band; 42 samples a replica are not


def test_replicas_of_unequal_capacity_have_no_even_shares_to_aim_at():
    assert Fixed(1000, tolerance=0.1).batch(seen(replicas=3, capacity=(1.0, 1.0, 2.0))) == 1000
    assert Fixed(1000, tolerance=0.1).batch(seen(replicas=3, capacity=(2.0, 2.0, 2.0))) == 999


def test_the_base_is_the_size_unless_it_is_given():
    assert Fixed(256).base == 256
    assert Fixed(256, base=32).base == 32


def test_integers_of_numpy_become_plain_ones():
    sizes: Any = np.array([256, 32])
    policy = Fixed(sizes[0], base=sizes[1])
    assert (type(policy.size), type(policy.base)) == (int, int)
    assert policy == Fixed(256, base=32)


@pytest.mark.parametrize("size", [0, -1, 1.0, 2.5, True, "64", None, np.float64(8), np.bool_(True)], ids=repr)
def test_a_size_that_is_no_count_of_samples_is_refused(size):
    with pytest.raises(ConfigError, match="size is "):
        Fixed(size)
    with pytest.raises(ConfigError, match="base is"):
        Fixed(64, base=size if size is not None else 0)


@pytest.mark.parametrize("tolerance", [-0.1, 1.0, float("nan"), float("inf"), "0.1", None, True], ids=repr)
def test_a_tolerance_that_is_no_part_of_the_size_is_refused(tolerance):
    with pytest.raises(ConfigError, match="tolerance is"):
        Fixed(64, tolerance=tolerance)
