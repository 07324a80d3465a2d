"""Goodput on simulated machines: it finds the best layout, keeps its limits, and gives its reasons."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings

from swell.core.events import BatchChanged, from_json, to_json
from swell.core.moments import efficiency
from swell.core.types import Layout, Observation, StepSummary
from swell.errors import ConfigError, PlanError
from swell.policies import Goodput, observation_from_dict, observation_to_dict, replay
from tests.policies.machines import KINDS, on_an_h200, run_on
from tests.policies.observations import estimate, observations, seen
from tests.policies.simulated_run import SimulatedRun


def batch_changes(run: SimulatedRun) -> list[int]:
    """Steps at which the global batch became another."""
    batches = [layout.global_batch for layout in run.chosen]
    return [step for step, (one, other) in enumerate(itertools.pairwise(batches), start=1) if one != other]


def got_and_could(run: SimulatedRun, until: int, low: int = 1, high: int = 4096) -> float:
    """The goodput of the run from here on as a part of what the best layouts would have given, trials included."""
    got, could = run.useful, 0.0
    while run.samples < until:
        best, before_s = run.best_goodput(low, high), run.seconds
        for _ in range(40):
            run.one_step()
        could += best * (run.seconds - before_s)
    return (run.useful - got) / could


@pytest.mark.parametrize("micro", ["auto", (8, 512)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_after_its_warm_up_goodput_is_within_five_percent_of_the_best_there_is(seed, kind, micro):
    run = run_on(seed, kind, policy=Goodput(128, max=4096, micro=micro, slack=0, price=None))
    run.until(40_000)
    assert got_and_could(run, 400_000, *((1, 4096) if micro == "auto" else micro)) > 0.95


@pytest.mark.parametrize("kind", KINDS)
def test_all_its_trials_cost_little_of_the_whole_run(kind):
    assert got_and_could(run_on(5, kind), 400_000) > 0.95


def test_on_a_machine_that_large_batches_use_better_it_moves_on_within_two_percent_of_the_run():
    run = SimulatedRun(
        policy=Goodput(128, max=4096, slack=0, price=None),
        law=on_an_h200,
        noise=lambda samples: 400 + samples / 500,
        total_samples=750_000,
    )
    run.until(15_000)
    assert run.true_goodput(run.chosen[-1]) > 0.95 * run.best_goodput(1, 4096)
    assert run.batch > 128
    run.until(750_000)
    assert run.true_goodput(run.chosen[-1]) > 0.95 * run.best_goodput(1, 4096)
    assert len(batch_changes(run)) < 40


def test_no_step_has_more_samples_than_an_epoch():
    run = run_on(11, "kneed", noise=lambda samples: 1e6)
    run.until(20_000)
    here = dataclasses.replace(run.observation(), batch=128, batch_since=0)
    assert run.policy.batch(here) > 300
    for replicas in (1, 2, 3):
        small = dataclasses.replace(here, epoch_size=300, replicas=replicas, resized=True)
        assert 128 <= run.policy.batch(small) <= 300


def test_memory_that_runs_out_is_met_once_and_respected_from_then_on():
    run = run_on(2, "kneed", memory=300, noise=lambda samples: 1e5, replicas=1, nodes=1)
    run.until(400_000)
    assert run.out_of_memory == 1
    assert run.max_micro is not None
    assert max(layout.micro_batch for layout in run.chosen[-100:]) <= run.max_micro
    assert run.true_goodput(run.chosen[-1]) > 0.95 * run.best_goodput(1, run.max_micro)


def test_larger_micro_batches_are_tried_by_doubling_never_by_a_leap():
    run = run_on(3, "kneed", noise=lambda samples: 1e6, replicas=1, nodes=1)
    largest = 128
    run.until(200_000)
    for layout in run.chosen:
        assert layout.micro_batch <= 2 * largest
        largest = max(largest, layout.micro_batch)
    assert largest > 1024


def test_a_change_of_the_world_is_answered_at_once_and_learnt_from():
    run = run_on(4, "linear", replicas=1, nodes=1, policy=Goodput(128, max=4096, micro=(8, 512), slack=0, price=None))
    run.until(100_000)
    for replicas, nodes, until in ((8, 1, 200_000), (3, 1, 300_000), (4, 2, 400_000)):
        run.resize(replicas, nodes)
        run.one_step()
        assert run.seen[-1].resized
        run.until(until)
        assert run.true_goodput(run.chosen[-1]) > 0.95 * run.best_goodput(8, 512)


def test_a_batch_that_no_longer_fits_is_left_at_once():
    policy = Goodput(128, max=1000, micro=(100, 500), dwell=10**9)
    here = seen(batch=128, replicas=8, resized=True, base_batch=128)
    assert policy.layout(here) == Layout(global_batch=800, micro_batch=100)
    with pytest.raises(PlanError, match="1100"):
        policy.batch(dataclasses.replace(here, replicas=11))


def test_changes_keep_their_distance():
    run = run_on(6, "kneed", policy=Goodput(128, max=4096, dwell=20_000))
    run.until(400_000)
    at = [run.seen[step].samples for step in batch_changes(run)]
    assert at and all(later - earlier >= 20_000 for earlier, later in itertools.pairwise(at))


def test_a_higher_hysteresis_changes_less_often():
    def changes(hysteresis: float) -> int:
        run = run_on(7, "linear", policy=Goodput(128, max=4096, hysteresis=hysteresis, explore=0))
        run.until(400_000)
        return len(batch_changes(run))

    assert changes(0.5) <= changes(0.05) <= changes(0.0)


@pytest.mark.parametrize(("prefer", "figure"), [("samples", "samples"), ("steps", "step")])
def test_more_slack_saves_what_is_preferred(prefer, figure):
    def spent(slack: float) -> float:
        policy = Goodput(128, max=4096, slack=slack, prefer=prefer, price=None)
        run = SimulatedRun(policy=policy, law=on_an_h200, noise=lambda samples: 2000.0, total_samples=400_000)
        while run.useful < 150_000:
            run.one_step()
        return getattr(run, figure)

    assert spent(0.2) < spent(0.0)


@pytest.mark.parametrize("price", [1.2, 1.5, 3.0])
def test_no_batch_is_chosen_at_which_a_sample_is_worth_less_than_its_price(price):
    policy = Goodput(128, max=4096, slack=0, price=price)
    run = SimulatedRun(policy=policy, law=on_an_h200, noise=lambda samples: 2000.0, total_samples=400_000)
    run.until(400_000)
    dear = [efficiency(layout.global_batch, base_batch=128, noise_scale=2000.0) for layout in run.chosen[-200:]]
    assert min(dear) > 0.85 / price  # the estimate is noisy, and a batch is left once it is clearly too dear


def test_a_batch_that_became_too_dear_is_left():
    policy = Goodput(128, max=4096, slack=0, price=1.5)
    loud = SimulatedRun(
        policy=policy,
        law=on_an_h200,
        noise=lambda samples: 8000.0 if samples < 200_000 else 100.0,
        total_samples=400_000,
    )
    loud.until(200_000)
    limit = 1.25 * (1.5 * (100 + 128) - 100)
    assert loud.batch > limit
    loud.until(400_000)
    assert loud.batch <= limit


def test_a_settled_choice_gives_up_no_more_than_the_slack_of_what_is_predicted():
    run = run_on(11, "kneed", policy=Goodput(128, max=4096, slack=0.05, price=None, explore=0))
    run.until(400_000)
    for observation in run.seen[len(run.seen) // 2 :]:
        why = run.policy.explain(observation)
        if "best_goodput" in why.inputs and why.goodput is not None:
            assert why.goodput >= why.inputs["best_goodput"] * (1 - 0.05) * (1 - 1e-6) or why.chosen == why.current


def test_what_stands_is_not_left_for_fewer_steps_where_that_costs_more_than_the_slack():
    run = run_on(
        11,
        "kneed",
        replicas=1,
        nodes=1,
        noise=lambda samples: 8000.0,
        policy=Goodput(128, max=4096, slack=0.08, prefer="steps", price=None, explore=0),
    )
    run.until(100_000)
    last, here, left = run.seen[-1], 4 * 128 + 8, 0  # a size that is not among the candidates
    usual = max(last.profile, key=lambda point: point.count)
    pace = usual.step_s / (usual.micro_batch * usual.accumulation)
    for faster in np.geomspace(0.6, 4.0, 15):  # and that this machine likes less or more than others
        took = StepSummary(replicas=1, nodes=1, micro_batch=here, accumulation=1, step_s=pace * here / faster, count=32)
        standing = dataclasses.replace(
            last, batch=here, micro_batch=here, batch_since=0, resized=False, profile=(*last.profile, took)
        )
        why = run.policy.explain(standing)
        assert why.goodput is not None and why.current_goodput is not None
        if why.chosen.global_batch > here:
            left += 1
            assert why.goodput >= why.current_goodput * (1 - run.policy.slack)
    assert 0 < left < 15


def test_it_goes_below_the_base_batch_only_when_asked():
    def noisy_at_first(shrink: bool) -> SimulatedRun:
        policy = Goodput(128, max=4096, shrink=shrink)
        run = run_on(8, "linear", noise=lambda samples: 1.0, replicas=1, nodes=1, policy=policy)
        run.until(100_000)
        return run

    assert min(layout.global_batch for layout in noisy_at_first(False).chosen) == 128
    assert min(layout.global_batch for layout in noisy_at_first(True).chosen) < 128


def test_a_monotone_batch_never_shrinks():
    run = run_on(
        9, "kneed", noise=lambda samples: 5000 / (1 + samples / 20_000), policy=Goodput(128, max=4096, monotone=True)
    )
    run.until(200_000)
    batches = [layout.global_batch for layout in run.chosen]
    assert batches == sorted(batches)


LIMITED = [
    Goodput(64, max=1000, micro=(4, 48)),
    Goodput(64, max=4096),
    Goodput(64, max=2048, micro=16, monotone=True),
    Goodput(64, max=1024, micro=None, shrink=True),
]


@pytest.mark.parametrize("policy", LIMITED, ids=repr)
@given(here=observations())
@settings(max_examples=50, deadline=None)
def test_hard_limits_hold_whatever_is_seen(policy, here):
    try:
        chosen = policy.layout(here)
    except PlanError:
        assert here.replicas * policy.micro[0] > policy.max
        return
    assert chosen.global_batch <= policy.max
    assert policy.shrink or chosen.global_batch >= policy.base
    assert chosen.global_batch >= here.replicas
    if here.max_micro is not None:
        assert chosen.micro_batch <= here.max_micro
    if isinstance(policy.micro, tuple):
        assert chosen.micro_batch <= policy.micro[1]
        assert here.max_micro is not None or chosen.micro_batch >= policy.micro[0]


@pytest.mark.parametrize("policy", LIMITED, ids=repr)
@given(here=observations())
@settings(max_examples=25, deadline=None)
def test_what_is_explained_is_what_is_chosen(policy, here):
    try:
        chosen = policy.layout(here)
    except PlanError:
        return
    decision = policy.explain(here)
    assert decision.chosen == chosen and policy.batch(here) == chosen.global_batch
    assert decision.reasons and all(reason.endswith(".") for reason in decision.reasons)
    json.dumps(decision.inputs)
    assert all(isinstance(value, float) for value in decision.inputs.values())


def test_a_run_is_decided_again_from_its_log_to_the_same_layouts():
    run = run_on(10, "cached")
    run.until(60_000)
    log = []
    for here, layout in zip(run.seen, run.chosen, strict=True):
        event = BatchChanged(
            time=0.0,
            step=here.step,
            before=here.batch,
            after=layout.global_batch,
            policy=repr(run.policy),
            seen=observation_to_dict(here),
            micro_before=here.micro_batch,
            micro_after=layout.micro_batch,
        )
        log.append(from_json(to_json(event)))
    assert all(decision.same for decision in replay(run.policy, log))
    again = [run.policy.layout(observation_from_dict(event.seen)) for event in log]
    assert again == run.chosen


@pytest.mark.parametrize(("start", "stop"), [(60, 90), (60, 120), (100, 160)])
def test_after_a_machine_was_slow_for_a_while_it_finds_back_to_the_best_layout(start, stop):
    run = run_on(3, "kneed", replicas=1, nodes=1, law=on_an_h200, noise=lambda samples: 1000.0, total_samples=3_000_000)
    run.law = lambda *layout: on_an_h200(*layout) * (4.0 if start < run.step < stop else 1.0)
    run.until(1_000_000)
    assert got_and_could(run, 1_500_000) > 0.95


def test_the_reasons_name_what_spoke_for_the_change():
    run = run_on(11, "kneed", noise=lambda samples: 2000.0)
    run.until(50_000)
    reasons = [
        " ".join(run.policy.explain(here).reasons)
        for here, layout in zip(run.seen, run.chosen, strict=True)
        if layout.global_batch > here.batch
    ]
    assert any("noise scale" in text and "times the goodput" in text for text in reasons)
    assert "No step was measured yet" in run.policy.explain(run.seen[0]).reasons[0]
    doubtful = dataclasses.replace(estimate(300, sure=False), observations=9)
    waiting = seen(noise=doubtful, profile=run.seen[-1].profile, samples=90_000)
    assert "not sure enough" in " ".join(run.policy.explain(waiting).reasons)
    least = dataclasses.replace(run.seen[-1], batch=128, batch_since=0, noise=estimate(9000, sure=False))
    assert "The noise scale is at least 900 samples" in " ".join(run.policy.explain(least).reasons)
    below = dataclasses.replace(run.seen[-1], batch=16, batch_since=0, noise=estimate(300, sure=False))
    reasons = " ".join(dataclasses.replace(run.policy, base=512, shrink=True).explain(below).reasons)
    assert "The noise scale is at least 30 samples" in reasons and "is worth at most" in reasons
    moved = dataclasses.replace(run.seen[-1], replicas=2, resized=True)
    assert "The world changed to 2 replicas." in run.policy.explain(moved).reasons


def test_speedup_tells_what_other_worlds_would_bring():
    run = run_on(12, "linear", replicas=2, nodes=1, noise=lambda samples: 1e5)
    assert run.policy.speedup(run.observation(), [1, 2, 4]) == {}
    run.until(50_000)
    brought = run.policy.speedup(run.observation(), [1, 2, 4, 5000])
    assert brought[2] == 1.0 and brought[1] < 1.0 < brought[4] and brought[5000] == 0.0
    unsure = dataclasses.replace(run.observation(), noise=None)
    assert run.policy.speedup(unsure, [2]) == {2: 1.0}


def test_a_noise_scale_that_is_no_number_is_not_acted_upon():
    profile = (StepSummary(replicas=4, nodes=1, micro_batch=16, accumulation=1, step_s=0.1, count=3),)
    for scale in (math.inf, math.nan):
        here = seen(noise=dataclasses.replace(estimate(100), total=estimate(scale).total), profile=profile)
        assert Goodput(64, max=4096).batch(here) == 64


@pytest.mark.parametrize(
    "arguments",
    [
        {"base": 0, "max": 64},
        {"base": 64, "max": 32},
        {"base": 64, "max": 128, "micro": (32, 8)},
        {"base": 64, "max": 128, "micro": "largest"},
        {"base": 64, "max": 128, "micro": (1, 2, 3)},
        {"base": 64, "max": 128, "micro": 0},
        {"base": 64, "max": 128, "hysteresis": -0.1},
        {"base": 64, "max": 128, "explore": 2.0},
        {"base": 64, "max": 128, "slack": -0.1},
        {"base": 64, "max": 128, "prefer": "time"},
        {"base": 64, "max": 128, "price": 0.9},
        {"base": 64, "max": 128, "dwell": -1},
        {"base": 64.0, "max": 128},
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(arguments):
    with pytest.raises(ConfigError):
        Goodput(**arguments)


@pytest.mark.parametrize("power", [1.0, 0.5])
@pytest.mark.parametrize("price", [1.2, 1.5])
def test_the_price_is_counted_by_the_law_of_the_rule(price, power):
    fast = tuple(
        StepSummary(replicas=1, nodes=1, micro_batch=micro, accumulation=1, step_s=0.01, count=100)
        for micro in (128, 256, 512, 1024, 2048, 4096)
    )
    observation = seen(
        noise=estimate(256.0), profile=fast, batch=128, micro_batch=128, base_batch=128, samples=10**6, batch_since=0,
        replicas=1, epoch_size=None, total_samples=10**7, worth_power=power,
    )  # fmt: skip
    batch = Goodput(128, max=4096, slack=0, price=price, explore=0).batch(observation)
    worth = efficiency(batch, base_batch=128, noise_scale=256.0, power=power)
    assert batch > 128
    assert 1 / price <= worth < 1.35 / price  # a step takes the same time at any batch: as large as the price allows


class SeldomMeasured(SimulatedRun):
    """A run whose noise is measured in one step of 8, as real ones are."""

    def observation(self) -> Observation:
        now = super().observation()
        return dataclasses.replace(now, noise=self.seen[-1].noise) if self.step % 8 and self.seen else now


@pytest.mark.parametrize("total_samples", [None, 200_000])
def test_a_remembered_choice_is_the_one_that_would_be_made_now(total_samples: int | None) -> None:
    """A policy that differs in nothing that matters has never seen the run, so it remembers nothing of it."""
    policy = Goodput(64, max=2048)
    run = SeldomMeasured(policy, law=on_an_h200, noise=lambda samples: 64 + samples / 200, total_samples=total_samples)
    for step in range(800):
        if step == 500:
            run.resize(2)
        run.one_step()
        twin = Goodput(64, max=2048, hysteresis=policy.hysteresis * (1 + 1e-12 * (step + 1)))
        assert twin.layout(run.seen[-1]) == run.chosen[-1]
    assert len({layout.global_batch for layout in run.chosen}) > 3
