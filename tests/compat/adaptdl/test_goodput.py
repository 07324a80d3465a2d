"""The goodput model answers as AdaptDL's did where that was right, and keeps every bound where it was not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from swell.compat.adaptdl.goodput import GoodputFunction, GradParams, PerfParams, fit_perf_params
from swell.errors import ConfigError, PlanError

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[2] / "golden" / "adaptdl" / "adaptdl.json").read_text())
PERF, GRAD = PerfParams(0.1, 0.01, 0.5, 0.1, 0.2, 0.05, 1.2), GradParams(0.001, 0.01)


def function(row: dict[str, Any]) -> GoodputFunction:
    return GoodputFunction(PerfParams(*row["perf"]), GradParams(*row["grad"]), 128)


def test_goodput_throughput_and_efficiency_are_the_originals() -> None:
    for row in GOLDEN["goodput"]:
        fun, (_, replicas, atomic, steps) = function(row), row["at"]
        assert fun(*row["at"]) == pytest.approx(row["goodput"], rel=1e-6)
        assert fun.throughput(*row["at"]) == pytest.approx(row["throughput"], rel=1e-6)
        assert fun.efficiency(replicas * atomic * (steps + 1)) == pytest.approx(row["efficiency"], rel=1e-6)


def test_the_best_layout_is_about_as_good_as_the_originals_wherever_that_kept_its_bounds() -> None:
    compared = 0
    for row in GOLDEN["optimum"]:
        (nodes, replicas), (value, atomic, steps) = row["world"], row["best"]
        if replicas * atomic * (steps + 1) > 1280:
            continue
        best = function(row).optimize(
            nodes, replicas, max_batch_size=1280, atomic_bsz_range=(64, 256), accumulation=row["accumulation"]
        )
        assert best[0] >= 0.98 * value and (best[2] == 0 or row["accumulation"])
        compared += 1
    assert compared > 40


@given(
    replicas=st.integers(1, 70),
    most=st.integers(128, 5000),
    low=st.integers(1, 128),
    high=st.integers(128, 600),
    accumulation=st.booleans(),
)
def test_no_bound_is_ever_broken(replicas: int, most: int, low: int, high: int, accumulation: bool) -> None:
    """AdaptDL C8 and A4: bounds were not hard, and without accumulation current numpy lacks ``np.int``."""
    fun = GoodputFunction(PERF, GRAD, 128)
    try:
        _, atomic, steps = fun.optimize(
            1, replicas, max_batch_size=most, atomic_bsz_range=(low, high), accumulation=accumulation
        )
    except PlanError:
        assume(False)
    assert low <= atomic <= high and (accumulation or steps == 0)
    whole = replicas * atomic * (steps + 1)
    assert whole - replicas * (steps + 1) < most and (whole <= most or whole - most < replicas * (steps + 1))


@pytest.mark.parametrize(("replicas", "low"), [(7, 1), (60, 1)])
def test_rounding_does_not_carry_the_batch_beyond_its_maximum(replicas: int, low: int) -> None:
    """AdaptDL C8: 1000 became 1001 on 7 replicas and 1020 on 60."""
    _, atomic, steps = GoodputFunction(PERF, GradParams(0.0, 1.0), 128).optimize(
        1, replicas, max_batch_size=1000, atomic_bsz_range=(low, 256), accumulation=True
    )
    assert replicas * atomic * (steps + 1) <= 1000


def test_replicas_that_the_maximum_cannot_feed_are_refused() -> None:
    """AdaptDL C8: 11 replicas with at least 100 each made 1100 of 1000."""
    fun = GoodputFunction(PERF, GRAD, 128)
    with pytest.raises(PlanError, match="10 replicas"):
        fun.optimize(1, 11, max_batch_size=1000, atomic_bsz_range=(100, 256))


def test_arrays_are_answered_element_by_element() -> None:
    fun = GoodputFunction(PERF, GRAD, 128)
    replicas = np.array([[1, 2], [3, 4]])
    values, atomic, steps = fun.optimize(1, replicas, max_batch_size=1000, atomic_bsz_range=(32, 256))
    assert values.shape == atomic.shape == steps.shape == (2, 2) and atomic[0, 0] == 128
    assert fun(1, replicas, 128, 0).shape == (2, 2)
    assert fun.efficiency(np.array([128, 256]))[0] == 1
    assert fun.throughput(1, 2, np.array([64, 128]), 0).shape == (2,)


def test_batches_below_the_initial_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="128"):
        GoodputFunction(PERF, GRAD, 128)(1, 1, 64, 0)


def test_a_fit_predicts_the_steps_it_was_made_from_as_the_originals_does() -> None:
    rows = GOLDEN["fit"]["rows"]
    theirs = GoodputFunction(PerfParams(*GOLDEN["fit"]["params"]), GradParams(0.0, 1.0), 16)
    ours = GoodputFunction(fit_perf_params(*(np.array(c) for c in zip(*rows, strict=True))), GradParams(0.0, 1.0), 16)
    for nodes, replicas, atomic, _, whole in rows:
        seconds = replicas * atomic / ours.throughput(nodes, replicas, atomic, 0)
        original = replicas * atomic / theirs.throughput(nodes, replicas, atomic, 0)
        assert abs(seconds / whole - 1) < max(0.08, 1.5 * abs(original / whole - 1))
