"""Goodput and the layouts to choose from: exact, within hard limits, smallest batch first."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from swell.core.goodput import best, candidates, goodput, layouts, outlook
from swell.core.moments import efficiency, gain
from swell.core.planning import plan
from swell.core.throughput import Params, fit, predict
from swell.core.types import Moments, StepSummary
from swell.core.world_bounds import world_bounds
from swell.errors import ConfigError, PlanError

worlds = st.integers(1, 12)
bounds = st.none() | st.tuples(st.integers(1, 24), st.integers(0, 200)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(
    batch=st.integers(1, 10**6),
    time=st.floats(1e-4, 1e3),
    base=st.integers(1, 10**4),
    signal=st.floats(1e-3, 1e3),
    noise=st.floats(0, 1e6),
)
def test_goodput_is_the_gain_of_a_step_over_its_time_in_base_samples(batch, time, base, signal, noise):
    moments = Moments(signal, noise)
    worth = float(goodput(batch, time, base, moments.noise_scale))
    assert worth == pytest.approx(batch / time * efficiency(batch, base_batch=base, noise_scale=moments.noise_scale))
    assert worth == pytest.approx(gain(batch / base, moments, base_batch=base) * base / time)


def test_with_endless_noise_every_sample_counts_the_same():
    assert goodput(np.array([32, 64]), np.array([1.0, 4.0]), 32, math.inf).tolist() == [32.0, 16.0]
    assert goodput(64, 1.0, 32, np.array([0.0, math.inf])).tolist() == [32.0, 64.0]


@given(
    replicas=worlds,
    base=st.integers(1, 300),
    more=st.integers(0, 3000),
    micro=bounds,
    shrink=st.booleans(),
    data=st.data(),
)
@settings(max_examples=100, deadline=None)
def test_every_candidate_can_be_planned_as_it_stands_within_all_limits(replicas, base, more, micro, shrink, data):
    speeds = st.tuples(*[st.floats(0.25, 4)] * replicas)
    capacity = data.draw(st.just(()) | speeds)
    try:
        found = candidates(
            replicas=replicas, base=base, max_batch=base + more, micro=micro, shrink=shrink, capacity=capacity
        )
    except PlanError:
        assume(False)
        raise
    low, high = micro or (1, base + more)
    for batch, size, accumulation in zip(
        found.global_batch.tolist(), found.micro_batch.tolist(), found.accumulation.tolist(), strict=True
    ):
        made = plan(batch, replicas, min_micro=low, max_micro=size, capacity=capacity or None)
        assert (made.micro_batch, made.accumulation) == (size, accumulation)
        assert batch <= base + more and (shrink or batch >= base)
        assert low <= min(micro.size for share in made.shares for micro in share) and size <= high
    order = [(b, a) for b, a in zip(found.global_batch.tolist(), found.accumulation.tolist(), strict=True)]
    assert order == sorted(order)


@given(replicas=worlds, base=st.integers(1, 300), micro=bounds, batch=st.integers(1, 2000))
@settings(max_examples=100, deadline=None)
def test_all_layouts_of_one_batch_are_of_that_batch(replicas, base, micro, batch):
    try:
        found = layouts(batch, replicas=replicas, micro=micro)
    except PlanError:
        with pytest.raises(PlanError):
            plan(batch, replicas, min_micro=(micro or (1, batch))[0], max_micro=(micro or (1, batch))[1])
        return
    assert set(found.global_batch.tolist()) == {batch}
    least = plan(batch, replicas, min_micro=(micro or (1, batch))[0], max_micro=(micro or (1, batch))[1])
    assert (found.micro_batch[0], found.accumulation[0]) == (least.micro_batch, least.accumulation)
    assert len(set(found.micro_batch.tolist())) == len(found)


@pytest.mark.parametrize("replicas", [1, 2, 3, 8])
def test_the_grid_is_fine_enough_that_nothing_much_lies_between(replicas):
    found = np.unique(candidates(replicas=replicas, base=128, max_batch=8192).global_batch)
    assert {128, 8192} <= set(found.tolist())
    assert np.max(found[1:] / found[:-1]) <= 1.5


def test_micro_batches_of_one_size_leave_the_accumulation_to_vary():
    found = candidates(replicas=4, base=128, max_batch=1024, micro=(32, 32))
    assert set(found.micro_batch.tolist()) == {32}
    assert set(found.global_batch.tolist()) <= set(range(128, 1025, 32))


def test_a_world_that_no_batch_fits_is_refused_with_the_numbers_to_change():
    with pytest.raises(PlanError, match="1100"):
        candidates(replicas=11, base=128, max_batch=1000, micro=(100, 500))
    with pytest.raises(PlanError):
        layouts(4, replicas=8)


def test_among_equals_the_smallest_batch_is_best():
    found = candidates(replicas=1, base=64, max_batch=1024)
    time = found.global_batch / 1000.0  # no batch uses the machine any better
    assert best(goodput(found.global_batch, time, 64, math.inf)) == 0
    assert found.layout(0).global_batch == 64


def linear(law: Params) -> list[StepSummary]:
    return [
        StepSummary(
            replicas=k,
            nodes=n,
            micro_batch=b,
            accumulation=1,
            step_s=float(predict(law, replicas=k, nodes=n, micro_batch=b, accumulation=1)),
            count=32,
        )
        for k, n in [(1, 1), (2, 1), (4, 1), (8, 2)]
        for b in (32, 64, 128, 256)
    ]


def test_speedup_is_one_here_and_grows_with_replicas_while_noise_is_endless():
    law = fit(linear(Params(alpha_c=0.001, beta_c=0.001, alpha_r=0.002, alpha_n=0.01, gamma=2.0)))
    brought = outlook(
        law, replicas=[1, 2, 4], now=(2, 1), base=128, max_batch=lambda _: 4096, noise_scale=math.inf, micro=(1, 256)
    )
    assert brought[2].speedup == 1.0
    assert 0.4 < brought[1].speedup < 0.6 and 1.8 < brought[4].speedup < 2.1


def test_the_error_of_an_outlook_is_small_where_such_worlds_were_measured_and_large_where_none_was():
    measured = [point for point in linear(Params(alpha_c=0.001, beta_c=0.001)) if point.replicas == 1]
    brought = outlook(fit(measured), replicas=[1, 4], now=(1, 1), base=128, max_batch=lambda _: 1024, noise_scale=500.0)
    assert 0 < brought[1].error < 0.1 and brought[4].error > 0.4


def test_without_noise_more_replicas_bring_next_to_nothing():
    law = fit(linear(Params(alpha_c=0.1, beta_c=1e-6, alpha_r=0.01, alpha_n=0.05, gamma=2.0)))
    brought = outlook(law, replicas=[1, 8], now=(1, 1), base=128, max_batch=lambda _: 4096, noise_scale=0.0)
    assert brought[8].speedup < 1.05


def test_a_world_no_batch_fits_into_brings_nothing():
    law = fit(linear(Params(alpha_c=0.001, beta_c=0.001)))
    world = {"now": (4, 2), "base": 128, "max_batch": lambda _: 1000, "noise_scale": 500.0, "micro": (100, 500)}
    brought = outlook(law, replicas=[10, 11], **world)
    assert brought[10].speedup > 0 and brought[11] == (0.0, 0.0)


def test_old_style_bounds_alone_and_together_rule_out_worlds():
    both = {world.replicas: world for world in world_bounds(range(1, 13), base=100, max_batch=1000, micro=(100, 200))}
    assert [count for count, world in both.items() if world.batches] == list(range(1, 11))
    assert both[8].batches == (800, 1000) and "1100" in both[11].reason
    maximum = {world.replicas: world.batches for world in world_bounds([10, 81], base=8, max_batch=80)}
    assert maximum == {10: (10, 80), 81: None}
    local = {world.replicas: world.batches for world in world_bounds([1, 2, 4, 40], base=64, micro=(8, 32))}
    assert local == {1: (64, 64), 2: (64, 64), 4: (64, 128), 40: (320, 1280)}
    neither = {world.replicas: world.batches for world in world_bounds([4, 65], base=64)}
    assert neither == {4: (64, 64), 65: None}


@pytest.mark.parametrize("wrong", [{"base": 0}, {"base": 64, "max_batch": 32}, {"base": 64, "micro": (32, 8)}], ids=str)
def test_bounds_that_cross_are_refused(wrong):
    with pytest.raises(ConfigError):
        world_bounds([1], **wrong)
