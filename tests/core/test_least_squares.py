"""The solver against scipy's, which is slower and was written by others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from swell.core.least_squares import least_squares, robust_cost

System = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def slow_twin(system: System, start: np.ndarray, *, low: np.ndarray, high: np.ndarray, scale: float) -> np.ndarray:
    settings = {"xtol": 1e-12, "ftol": 1e-12, "gtol": 1e-12, "max_nfev": 5000}
    inside = np.clip(start, low + 1e-6, high - 1e-6)
    slopes: Any = lambda at: system(at)[1]  # noqa: E731
    return optimize.least_squares(
        lambda at: system(at)[0], inside, slopes, bounds=(low, high), loss="soft_l1", f_scale=scale, **settings
    ).x


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(0, 12), st.sampled_from([0.3, 2.0, 100.0]))
@settings(max_examples=60)
def test_a_linear_problem_is_solved_as_scipy_does(seed: int, unknowns: int, more: int, scale: float) -> None:
    random = np.random.default_rng(seed)
    matrix, wanted = random.normal(size=(unknowns + more, unknowns)), random.normal(size=unknowns + more) * 3
    low, high = -random.uniform(0.1, 2.0, unknowns), random.uniform(0.1, 2.0, unknowns)

    def system(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return matrix @ at - wanted, matrix

    here = least_squares(system, np.zeros(unknowns), low=low, high=high, scale=scale, tolerance=1e-9)
    assert np.all((low <= here) & (here <= high))
    there = slow_twin(system, np.zeros(unknowns), low=low, high=high, scale=scale)
    assert robust_cost(system(here)[0], scale=scale) <= robust_cost(system(there)[0], scale=scale) * 1.001 + 1e-9


@given(st.integers(0, 10_000))
@settings(max_examples=60)
def test_the_cost_is_never_above_that_of_the_start(seed: int) -> None:
    random = np.random.default_rng(seed)
    x, y = random.uniform(0, 3, 12), random.normal(size=12)

    def system(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        wave = np.sin(at[0] * x + at[1])  # many minima
        return at[2] * wave - y, np.stack(
            [at[2] * np.cos(at[0] * x + at[1]) * x, at[2] * np.cos(at[0] * x + at[1]), wave], 1
        )

    start, low, high = random.normal(size=3), np.full(3, -4.0), np.full(3, 4.0)
    here = least_squares(system, start, low=low, high=high, scale=2.0)
    before = robust_cost(system(np.clip(start, low, high))[0], scale=2.0)
    assert robust_cost(system(here)[0], scale=2.0) <= before


def test_unknowns_at_their_bounds_do_not_hold_up_the_others() -> None:
    def system(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return at - np.array([5.0, 0.3, -5.0]), np.eye(3)

    bounds = {"low": np.full(3, -1.0), "high": np.full(3, 1.0)}
    here = least_squares(system, np.zeros(3), scale=100.0, tolerance=1e-9, **bounds)
    assert here == pytest.approx([1.0, 0.3, -1.0], abs=1e-4)


def test_an_outlier_counts_by_its_size() -> None:
    assert robust_cost(np.array([0.1]), scale=2.0) == pytest.approx(0.005, rel=1e-3)
    assert robust_cost(np.array([2000.0]), scale=2.0) == pytest.approx(2.0 * 2000.0, rel=1e-2)
