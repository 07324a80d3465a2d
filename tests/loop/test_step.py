"""A step knows which micro-batch is out, what its loss weighs, and refuses calls that come at the wrong moment."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.planning import plan, plan_remainder, with_equal_rounds
from swell.core.types import Plan
from swell.errors import ConfigError, LoopError
from swell.loop.step import Phase, StepInProgress

layouts = st.tuples(st.integers(1, 60), st.integers(1, 5), st.integers(1, 9)).map(
    lambda drawn: plan_remainder(drawn[0], drawn[1], max_micro=drawn[2])
)
weights = st.just(0.0) | st.floats(1e-3, 100)


def make(layout: Plan | None = None, *, rank: int = 0, start: int = 0) -> StepInProgress:
    return StepInProgress(epoch=0, start=start, plan=layout or plan(12, 1, max_micro=4), rank=rank, measured=False)


def backward(step: StepInProgress, weight: float | None = None) -> float:
    multiplier = step.multiplier(weight)
    step.backwards += 1
    return multiplier


def finish(step: StepInProgress) -> None:
    step.enter(Phase.COMMITTED)


@given(layout=layouts)
def test_by_samples_the_multipliers_of_all_replicas_add_up_to_one(layout: Plan) -> None:
    total = 0.0
    for rank in range(layout.replicas):
        step = make(layout, rank=rank)
        for index, micro in enumerate(step.mine):
            assert step.hand_out(index) is micro
            assert backward(step) == micro.weight == micro.size / layout.global_batch
            total += micro.weight
        assert step.weighted is (False if step.mine else None) and step.weight_sum == 0
    assert total == pytest.approx(1.0)


@given(layout=layouts, data=st.data())
def test_with_weights_the_sums_divided_by_the_mean_weight_are_a_weighted_mean(layout: Plan, data: Any) -> None:
    multipliers, given_weights, sums = [], [], 0.0
    for rank in range(layout.replicas):
        step = make(layout, rank=rank)
        for index in range(len(step.mine)):
            step.hand_out(index)
            given_weights.append(data.draw(weights))
            multipliers.append(backward(step, given_weights[-1]))
            assert backward(step, given_weights[-1]) == multipliers[-1]  # two losses add up, and count one weight
        sums += step.weight_sum
    assert sums == pytest.approx(sum(given_weights))
    share = layout.global_batch / sums if sums > 0 else 1.0
    assert [m * share for m in multipliers] == pytest.approx([w / (sums or 1) for w in given_weights])


@given(layout=layouts.map(with_equal_rounds))
def test_the_rounds_of_all_replicas_weigh_as_much_as_their_micro_batches(layout: Plan) -> None:
    step = make(layout)
    rounds = [step.round_weight(index) for index in range(layout.accumulation)]
    assert sum(rounds) == pytest.approx(1.0)
    for index, weight in enumerate(rounds):
        assert weight == pytest.approx(sum(share[index].weight for share in layout.shares))


def test_what_a_round_weighs_is_unknown_where_weights_are_explicit() -> None:
    step = make()
    step.hand_out(0)
    backward(step, 3.0)
    assert step.round_weight(0) == 0.0


@given(layout=layouts, start=st.integers(0, 1000))
def test_a_step_knows_its_share_its_last_micro_batch_and_where_it_ends(layout: Plan, start: int) -> None:
    for rank in range(layout.replicas):
        step = make(layout, rank=rank, start=start)
        assert step.stop == start + layout.global_batch
        assert step.mine == layout.shares[rank]
        assert [step.hand_out(i) and step.is_last for i in range(len(step.mine))] == [
            i == len(step.mine) - 1 for i in range(len(step.mine))
        ]


def test_a_new_micro_batch_starts_without_backward_passes_and_without_a_weight() -> None:
    step = make()
    step.hand_out(0)
    backward(step, 2.0)
    step.taken.add(0)
    step.hand_out(1)
    assert (step.index, step.backwards, step.weight, step.taken) == (1, 0, None, set())
    backward(step, 5.0)
    assert step.weight_sum == 7.0


@pytest.mark.parametrize(("first", "second"), [(None, 1.0), (1.0, None)])
def test_all_micro_batches_have_a_weight_or_none_has(first: float | None, second: float | None) -> None:
    step = make()
    step.hand_out(0)
    backward(step, first)
    step.hand_out(1)
    with pytest.raises(ConfigError, match="weight"):
        step.multiplier(second)


@pytest.mark.parametrize(("first", "second"), [(1.0, 2.0), (1.0, None), (None, 1.0)])
def test_backward_passes_over_one_micro_batch_share_one_weight(first: float | None, second: float | None) -> None:
    step = make()
    step.hand_out(0)
    backward(step, first)
    with pytest.raises(ConfigError, match="weight"):
        step.multiplier(second)


@pytest.mark.parametrize("weight", [-1.0, math.inf, -math.inf, math.nan])
def test_a_weight_is_a_finite_number_that_is_not_negative(weight: float) -> None:
    step = make()
    step.hand_out(0)
    with pytest.raises(ConfigError, match=f"weight.*{weight}"):
        step.multiplier(weight)
    assert step.weight_sum == 0


def test_a_weight_of_nothing_is_a_weight() -> None:
    step = make()
    step.hand_out(0)
    assert backward(step, 0.0) == 0.0 and step.weighted is True


def test_a_call_needs_a_micro_batch_that_is_out() -> None:
    step = make()
    with pytest.raises(LoopError, match=r"job\.backward"):
        step.require_usable("backward")
    step.hand_out(0)
    step.require_usable("backward")
    finish(step)
    with pytest.raises(LoopError, match=r"job\.step"):
        step.require_usable("step")


def test_a_call_after_the_step_broke_says_why_it_did() -> None:
    step = make()
    step.hand_out(0)
    step.spoiled = "the cat pulled the plug"
    with pytest.raises(LoopError, match=r"job\.step.*the cat pulled the plug"):
        step.require_usable("step")


def test_the_next_batch_needs_the_one_before_to_be_used() -> None:
    step = make(start=100)
    step.hand_out(1)
    with pytest.raises(LoopError, match=r"job\.backward and job\.step.*4 samples from position 104"):
        step.require_finished()
    backward(step)
    with pytest.raises(LoopError, match=r"job\.step was"):
        step.require_finished()
    step.taken.add(0)
    step.require_finished()


def test_a_step_that_broke_or_ended_needs_nothing_more() -> None:
    broken, ended = make(), make()
    for step in (broken, ended):
        step.hand_out(0)
    broken.spoiled = "memory ran out"
    finish(ended)
    broken.require_finished()
    ended.require_finished()
