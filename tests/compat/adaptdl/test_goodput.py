"""The goodput model answers as AdaptDL's did where that was right, and keeps every bound where it was not."""

from __future__ import annotations

import json
import math
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


def slow_best(
    fun: GoodputFunction, nodes: int, replicas: int, most: int, low: int, high: int, accumulation: bool
) -> float:
    """The obvious twin: every atomic batch with every number of steps that the bounds allow, one row of steps each."""
    base, best = fun.init_batch_size, 0.0
    if replicas == 1 and not accumulation:
        return float(fun(nodes, 1, base, 0)) if low <= base <= min(high, most) else 0.0
    for steps in range(most // (replicas * low) if accumulation else 1):
        atomic = np.arange(low, min(high, most // (replicas * (steps + 1))) + 1)
        atomic = atomic[replicas * atomic * (steps + 1) >= base]
        if len(atomic):
            best = max(best, float(np.max(fun(nodes, replicas, atomic, steps))))
    return best


def documented_best(
    fun: GoodputFunction, nodes: int, replicas: int, most: int, low: int, high: int, accumulation: bool
) -> float:
    """What AdaptDL documents: 50 batches at equal ratios, each split with the fewest steps; those within the bounds."""
    base, best = fun.init_batch_size, 0.0
    for batch in np.geomspace(max(base, low * replicas), most, 50):
        local, steps = batch / replicas, 0
        if accumulation:
            steps = math.ceil(local / high - 1e-8) - 1
            if replicas == 1 and local > base + 1e-8:
                steps = max(steps, 1)
        atomic = math.ceil(local / (steps + 1) - 1e-8)
        if replicas == 1 and not accumulation:
            atomic = base
        atomic = min(max(atomic, low), high)
        if base <= replicas * atomic * (steps + 1) <= most:
            best = max(best, float(fun(nodes, replicas, atomic, steps)))
    return best


def random_case(random: np.random.Generator) -> tuple[GoodputFunction, tuple[int, int, int, int, int, bool]]:
    times = (10 ** random.uniform([-2, -4, -2, -3, -3, -4], [0, -2, 0, -1, -1, -2])).tolist()
    perf = PerfParams(*times, gamma=random.uniform(1, 10))
    base = int(2 ** random.uniform(3, 10))
    fun = GoodputFunction(perf, GradParams(*10 ** random.uniform([-4, -4], [0, 0])), base)
    low, high = int(base * random.uniform(0.01, 0.5)) or 1, int(base * random.uniform(0.5, 4)) + 1
    nodes, replicas = int(random.integers(1, 5)), int(random.integers(1, 33))
    return fun, (nodes, replicas, int(base * random.uniform(1, 64)), low, high, bool(random.integers(2)))


def test_no_layout_is_more_than_a_thousandth_better_than_the_chosen_one() -> None:
    """In 250 random cases, against every layout within the bounds and against AdaptDL's documented search."""
    random = np.random.default_rng(14)
    compared, losses = 0, []
    for _ in range(250):
        fun, (nodes, replicas, most, low, high, accumulation) = random_case(random)
        best = max(
            slow_best(fun, nodes, replicas, most, low, high, accumulation),
            documented_best(fun, nodes, replicas, most, low, high, accumulation),
        )
        try:
            chosen, atomic, steps = fun.optimize(nodes, replicas, most, (low, high), accumulation)
        except PlanError:
            assert best == 0, "something fits"
            continue
        compared += best > 0
        losses.append(1 - chosen / best if best else 0.0)
        if best:
            assert chosen == pytest.approx(fun(nodes, replicas, atomic, steps), rel=1e-12)
    assert compared > 150 and max(losses) < 0.001


def test_large_batches_are_searched_as_well_as_small_ones() -> None:
    """Shares of thousands of samples, where not every layout is tried."""
    random = np.random.default_rng(3)
    for _ in range(5):
        fun, (nodes, replicas, _, low, high, _) = random_case(random)
        most = replicas * int(random.integers(5_000, 12_000))
        chosen, _, _ = fun.optimize(nodes, replicas, most, (low, high), accumulation=True)
        assert chosen >= 0.999 * slow_best(fun, nodes, replicas, most, low, high, True)


def test_a_number_of_replicas_that_does_not_fit_is_worth_nothing_among_others_that_do() -> None:
    """A speedup function over 1 to 32 replicas asks for all of them at once; AdaptDL gave 0 there."""
    fun, replicas = GoodputFunction(PERF, GRAD, 128), np.arange(1, 33)
    values, atomic, steps = fun.optimize(1, replicas, max_batch_size=1000, atomic_bsz_range=(100, 256))
    assert np.all(values[:10] > 0) and np.all(values[10:] == 0)
    assert np.all(atomic[10:] == 0) and np.all(steps == 0)
    assert values[3] == fun.optimize(1, 4, max_batch_size=1000, atomic_bsz_range=(100, 256))[0]


@pytest.mark.parametrize("accumulation", [False, True])
def test_a_maximum_below_the_initial_batch_is_refused_on_one_replica_too(accumulation: bool) -> None:
    with pytest.raises(PlanError, match="128"):
        GoodputFunction(PERF, GRAD, 128).optimize(1, 1, max_batch_size=64, accumulation=accumulation)


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
