"""What goodput does by a noise scale that is not sure: nothing, or as much as is right for the least it may be."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from swell.core.types import StepSummary
from swell.policies import Goodput
from tests.policies.machines import on_an_h200, run_on
from tests.policies.observations import estimate, seen


def test_it_stays_at_the_base_batch_while_nothing_is_known_of_the_noise_scale():
    run = run_on(1, "kneed", sure_after=10**9, doubt=math.inf)
    run.until(100_000)
    assert {layout.global_batch for layout in run.chosen} == {128}
    assert len({layout.micro_batch for layout in run.chosen}) > 1  # yet it learnt what a sample costs


@pytest.mark.parametrize("policy", [Goodput(128, max=4096), Goodput(128, max=4096, price=None)])
def test_a_surer_noise_scale_is_awaited_where_it_may_change_the_choice(policy):
    assert policy.awaits(None) and not policy.awaits(estimate(1000.0))
    assert policy.awaits(estimate(1000.0, sure=False))
    # From 5 base batches on the noise scale counts as 5, if a price is set: its lower end is a tenth of it here.
    assert policy.awaits(estimate(10 * 5 * 128 + 1.0, sure=False)) == (policy.price is None)


def test_without_exploring_the_layout_is_left_alone_until_then_too():
    run = run_on(1, "linear", sure_after=10**9, doubt=math.inf, policy=Goodput(128, max=4096, explore=0))
    run.until(20_000)
    assert len(set(run.chosen)) == 1


@pytest.mark.parametrize("shrink", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_by_a_noise_scale_that_is_not_sure_it_grows_to_what_is_right_for_the_least_it_may_be(seed, shrink):
    policy = Goodput(128, max=4096, shrink=shrink)
    given = {"law": on_an_h200, "policy": policy, "replicas": 1, "nodes": 1}
    unsure = run_on(seed, "", noise=lambda samples: 8 * 1000.0, sure_after=10**9, **given)
    least = run_on(seed, "", noise=lambda samples: 1000.0, **given)
    for run in (unsure, least):
        run.until(200_000)
    batches = [layout.global_batch for layout in unsure.chosen]
    assert set(batches[:16]) == {128}
    assert least.batch / 1.6 < np.median(batches) < least.batch * 1.6
    now = dataclasses.replace(unsure.seen[-1], batch_since=0)
    assert "not sure enough to act on (between" in " ".join(policy.explain(now).reasons)


def test_in_doubt_a_change_of_the_world_makes_no_batch_smaller():
    run = run_on(11, "kneed", noise=lambda samples: 4000.0, replicas=1, nodes=1)
    run.until(100_000)
    unsure = dataclasses.replace(estimate(2000), interval=(20.0, math.inf))
    for replicas in (1, 2, 3, 8):
        here = dataclasses.replace(run.observation(), noise=unsure, replicas=replicas, resized=True)
        assert run.policy.batch(here) >= run.batch - replicas > 128


def test_in_doubt_a_trial_is_taken_back_to_no_less_than_what_had_stood():
    run = run_on(11, "kneed", noise=lambda samples: 4000.0, replicas=1, nodes=1)
    run.until(100_000)
    stood = max(p.micro_batch * p.accumulation for p in run.profile.summaries() if p.count >= 32)
    unsure = dataclasses.replace(estimate(2000), interval=(20.0, math.inf))
    trial = dataclasses.replace(run.observation(), noise=unsure, batch=4096, micro_batch=4096, batch_since=0)
    assert run.policy.batch(trial) >= stood > 128


def test_a_noise_scale_that_is_not_sure_takes_nothing_back():
    run = run_on(11, "kneed", noise=lambda samples: 4000.0)
    run.until(100_000)
    assert run.batch > 128
    run.sure_after, run.noise = 10**9, lambda samples: 40.0
    before = run.batch
    run.until(200_000)
    assert min(layout.global_batch for layout in run.chosen[-50:]) >= before
    run.sure_after = 0
    run.until(400_000)
    assert run.batch < before


def in_doubt_at(batch, interval, *, noise_scale):
    """A run on a device that computes any batch in nearly the same time, where larger always looks better."""
    steps = [
        StepSummary(replicas=1, nodes=1, micro_batch=size, accumulation=1, step_s=0.002 + 1e-7 * size, count=40)
        for size in (32, 64, 96, 256, 384)
    ]
    return seen(
        base_batch=32,
        batch=batch,
        micro_batch=batch,
        replicas=1,
        samples=30_000,
        noise=dataclasses.replace(estimate(noise_scale), interval=interval),
        profile=tuple(steps),
        worth_power=0.5,
    )


@pytest.mark.parametrize("interval", [(10.0, 800.0), (60.0, 800.0), (60.0, math.inf), (200.0, 2000.0)])
def test_in_doubt_a_batch_above_the_price_does_not_grow_further(interval):
    now = in_doubt_at(384, interval, noise_scale=200)
    assert Goodput(32, max=1024, price=1.25).batch(now) <= 384
    assert Goodput(32, max=1024, price=None).batch(now) >= 384


@pytest.mark.parametrize("least", [0.0, 2.0, 15.0])
def test_a_batch_that_is_too_dear_whatever_the_noise_may_be_is_taken_back_in_doubt(least):
    policy, most = Goodput(32, max=1024, price=1.75), 80.0
    now = in_doubt_at(384, (least, most), noise_scale=30)
    assert now.noise is not None and not now.noise.sure
    chosen = policy.batch(now)
    assert 32 <= chosen <= 1.75**2 * (most + 32) - most  # worth its price at the most noise there may be
    assert policy.batch(in_doubt_at(384, (least, 1000.0), noise_scale=30)) == 384  # here it may be worth it
    assert Goodput(32, max=1024, price=1.75, monotone=True).batch(now) == 384
