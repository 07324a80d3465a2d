"""The quantile against scipy's, which was written by others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit

from swell.core.student_t import student_t


@given(st.floats(min_value=0.1, max_value=60.0) | st.floats(min_value=0.1, max_value=1e12))
def test_it_is_the_quantile_for_any_number_of_degrees(degrees: float) -> None:
    assert student_t(degrees) == pytest.approx(float(stdtrit(degrees, 0.975)), rel=2e-7)


def test_more_observations_never_widen_an_interval() -> None:
    quantiles = [student_t(degrees / 100) for degrees in range(50, 6000)]
    assert quantiles == sorted(quantiles, reverse=True)
