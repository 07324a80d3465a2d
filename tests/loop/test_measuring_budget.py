"""Measuring never costs more than its share of the time, whatever steps cost, and never stops for good."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.errors import CheckpointError
from swell.loop.measuring_budget import MeasuringBudget, loan

SHAPE = (1, 8, 1)


def drive(
    budget: MeasuringBudget, steps: int, *, cost: float, share: float, step_s: float = 1.0, needed: bool = True
) -> list[bool]:
    """Measure whenever it is allowed; a measured step takes ``1 + cost`` times as long."""
    measured = []
    for _ in range(steps):
        measured.append(budget.allows(SHAPE, share=share, needed=needed))
        budget.committed(SHAPE, measured=measured[-1])
        budget.timed(step_s * (1 + cost) if measured[-1] else step_s)
    return measured


@given(
    cost=st.floats(0.01, 3.5),
    share=st.floats(0.005, 0.5),
    steps=st.integers(10, 3000),
    step_s=st.floats(1e-4, 10),
    needed=st.booleans(),
)
def test_what_measuring_costs_stays_within_its_share_and_a_bounded_loan(
    cost: float, share: float, steps: int, step_s: float, needed: bool
) -> None:
    measured = drive(MeasuringBudget(), steps, cost=cost, share=share, step_s=step_s, needed=needed)
    spent, total = cost * sum(measured), steps + cost * sum(measured)
    limit = max(share * total, loan(share, needed=needed) + share * total / 2)
    assert spent <= limit + 4 * cost + 1e-6  # two of unknown cost, one at the edge


@given(cost=st.floats(0.01, 3.5), share=st.floats(0.005, 0.5))
def test_once_the_loan_is_repaid_the_share_is_used_up(cost: float, share: float) -> None:
    budget = MeasuringBudget()
    steps = int(40 * loan(share) / share)
    measured = drive(budget, steps, cost=cost, share=share)
    assert cost * sum(measured) >= 0.8 * share * steps or sum(measured) >= 0.9 * steps


@given(cost=st.floats(0.01, 3.5), share=st.floats(0.005, 0.5))
def test_where_nothing_needs_the_figures_half_of_the_share_is_used(cost: float, share: float) -> None:
    steps = int(400 / share)
    measured = drive(MeasuringBudget(), steps, cost=cost, share=share, needed=False)
    spent, total = cost * sum(measured), steps + cost * sum(measured)
    assert spent <= 0.5 * share * total + 4 * cost + 1e-6
    assert spent >= 0.4 * share * steps or sum(measured) >= 0.9 * steps


def test_where_nothing_needs_the_figures_the_first_measured_step_is_charged_when_that_can_be_told() -> None:
    budget = MeasuringBudget()
    assert budget.allows(SHAPE, share=0.02, needed=False)
    budget.committed(SHAPE, measured=True)
    budget.timed(13.0)
    resumed = MeasuringBudget()
    resumed.load_state_dict(json.loads(json.dumps(budget.state_dict())))
    for each in (budget, resumed):
        assert not any(drive(each, 3, cost=1.0, share=0.02, needed=False))
        assert each.spent_s == 4.0
        measured = drive(each, 2000, cost=1.0, share=0.02, needed=False)
        assert measured[0], "now its cost can be told at once"
        assert 500 <= measured[1:].index(True) < 1000


def test_figures_that_are_needed_from_now_on_come_at_once() -> None:
    budget = MeasuringBudget()
    assert sum(drive(budget, 50, cost=1.0, share=0.02, needed=False)) <= 2
    assert drive(budget, 8, cost=1.0, share=0.02) == [True] * 8


def test_measuring_that_costs_nothing_is_never_held_back() -> None:
    measured = drive(MeasuringBudget(), 500, cost=0.0, share=0.02)
    assert sum(measured) >= 490


def test_unmeasured_steps_are_timed_before_the_cost_of_measuring_is_judged() -> None:
    assert drive(MeasuringBudget(), 6, cost=1.0, share=0.02) == [True, True, False, False, False, True]


def test_a_step_that_compiles_does_not_end_measuring_for_long() -> None:
    budget = MeasuringBudget()
    drive(budget, 5, cost=1.0, share=0.02)
    budget.committed(SHAPE, measured=True)
    budget.timed(1000.0)
    assert budget.spent_s <= 4.0
    assert any(drive(budget, 300, cost=1.0, share=0.02))


def test_replicas_with_the_same_numbers_measure_the_same_steps_also_after_a_resume() -> None:
    one, other = MeasuringBudget(), MeasuringBudget()
    assert drive(one, 100, cost=0.7, share=0.02) == drive(other, 100, cost=0.7, share=0.02)
    resumed = MeasuringBudget()
    resumed.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert drive(resumed, 400, cost=0.7, share=0.02) == drive(other, 400, cost=0.7, share=0.02)


def test_after_a_change_of_world_the_latest_step_is_timed_by_nobody() -> None:
    budget = MeasuringBudget()
    budget.committed(SHAPE, measured=False)
    budget.enter_world()
    budget.timed(1.0)
    assert budget.state_dict() == MeasuringBudget().state_dict()


@given(shapes=st.lists(st.integers(1, 3), min_size=200, max_size=600), cost=st.floats(0.1, 3.5))
def test_shapes_that_change_all_the_time_do_not_escape_the_budget(shapes: list[int], cost: float) -> None:
    budget, spent, total = MeasuringBudget(), 0.0, 0.0
    for step, size in enumerate(shapes):
        shape = (1, size + 4 * (step // 50), 1)
        measured = budget.allows(shape, share=0.02)
        budget.committed(shape, measured=measured)
        budget.timed(size * (1 + cost) if measured else size)
        spent, total = spent + cost * size * measured, total + size * (1 + cost * measured)
    assert spent <= 3 * loan(0.02) + 0.02 * total + 12 * cost


def test_a_damaged_state_is_refused_and_changes_nothing() -> None:
    budget = MeasuringBudget()
    drive(budget, 20, cost=1.0, share=0.02)
    before = budget.state_dict()
    with pytest.raises(CheckpointError, match="measuring budget"):
        budget.load_state_dict({"total_s": 1.0})
    assert budget.state_dict() == before


@given(st.lists(st.tuples(st.sampled_from(["measured", "by itself", "on average"]), st.floats(0.5, 2.0)), max_size=60))
def test_times_that_are_right_only_on_average_count_for_the_sum_alone(steps: list[tuple[str, float]]) -> None:
    budget, twin = MeasuringBudget(), MeasuringBudget()  # the twin hears of the other steps only
    on_average = 0.0
    for kind, step_s in [("by itself", 1.0)] * 3 + steps:
        budget.committed(SHAPE, measured=kind == "measured", by_itself=kind != "on average")
        budget.timed(step_s)
        if kind == "on average":
            on_average += step_s
        else:
            twin.committed(SHAPE, measured=kind == "measured")
            twin.timed(step_s)
    for name, value in twin.state_dict().items():
        expected = value + on_average if name == "total_s" else value
        assert budget.state_dict()[name] == (pytest.approx(expected) if name == "total_s" else expected)
