"""A scheduler moves with what was learnt: once a base step of progress, once an epoch, or by the user alone."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import lr_scheduler

from swell.errors import ConfigError, LoopError
from swell.loop.lr_schedule import LRSchedule, schedule_of

gains = st.lists(st.floats(0.05, 9.0), max_size=30)


class Counter:
    """A scheduler that only counts; one of the user's own, which says nothing about itself."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self) -> None:
        self.steps += 1

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]


def make_optimizer(momentum: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0, momentum=momentum)


def make_scheduler(kind: Any = lr_scheduler.ExponentialLR, **options: Any) -> Any:
    optimizer = make_optimizer()
    scheduler = kind(optimizer, **(options or {"gamma": 0.9}))
    optimizer.step()  # or torch warns that the scheduler came first
    return scheduler


@given(gains=gains)
def test_after_every_step_the_scheduler_has_moved_once_for_each_whole_base_step(gains: list[float]) -> None:
    counter = Counter()
    schedule, progress = LRSchedule(counter, by="progress"), 0.0
    for gain in gains:
        progress += gain
        schedule.advance(progress)
        assert math.floor(progress) <= counter.steps <= math.floor(progress + 1e-9)


def test_a_sum_that_misses_a_whole_number_by_rounding_counts_as_that_number() -> None:
    counter = Counter()
    LRSchedule(counter, by="progress").advance(sum([0.1] * 10))  # 0.9999999999999999
    assert counter.steps == 1


JUMPING = {
    "one-cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=2.0, total_steps=300, pct_start=0.2, three_phase=True),
    "warm-up": lambda o: lr_scheduler.LambdaLR(o, lambda step: min(1.0, (step + 1) / 20) * 0.99**step),
}


@pytest.mark.parametrize("make", JUMPING.values(), ids=JUMPING)
@given(gains=gains)
def test_a_scheduler_that_jumps_is_where_one_that_steps_would_be(make: Any, gains: list[float]) -> None:
    ours, twins = make_optimizer(momentum=0.9), make_optimizer(momentum=0.9)
    scheduler, twin = make(ours), make(twins)
    for optimizer in (ours, twins):
        optimizer.step()  # or torch warns that the scheduler came first
    schedule, progress = LRSchedule(scheduler, by="progress"), 0.0
    for gain in gains:
        progress += gain
        schedule.advance(progress)
        while twin.last_epoch < math.floor(progress + 1e-9):
            twin.step()
        assert ours.param_groups[0] | {"params": ()} == twins.param_groups[0] | {"params": ()}
    assert scheduler.get_last_lr() == twin.get_last_lr()
    plain = {name: value for name, value in scheduler.state_dict().items() if "func" not in name}
    assert plain == {name: value for name, value in twin.state_dict().items() if "func" not in name}


def test_a_scheduler_whose_steps_are_watched_makes_each_of_them() -> None:
    class Counting:
        def __init__(self) -> None:
            self.calls: list[int] = []

        def __call__(self, step: int) -> float:
            self.calls.append(step)
            return 1.0

    watched, seen = make_scheduler(lr_scheduler.OneCycleLR, max_lr=1.0, total_steps=9), []
    step = watched.step
    watched.step = lambda: (seen.append(watched.last_epoch), step())
    LRSchedule(watched, by="progress").advance(4.0)
    assert seen == [0, 1, 2, 3]
    counting = Counting()
    LRSchedule(make_scheduler(lr_scheduler.LambdaLR, lr_lambda=counting), by="progress").advance(4.0)
    assert counting.calls == [0, 1, 2, 3, 4]


@given(gains=gains, cut=st.integers(0, 30))
def test_a_resumed_schedule_goes_on_from_where_it_was(gains: list[float], cut: int) -> None:
    scheduler = make_scheduler()
    schedule, progress = LRSchedule(scheduler, by="progress"), 0.0
    for number, gain in enumerate(gains):
        if number == cut:
            saved = copy.deepcopy(schedule.state_dict())
            scheduler = make_scheduler()
            schedule = LRSchedule(scheduler, by="progress")
            schedule.load_state_dict(saved)
        progress += gain
        schedule.advance(progress)
    assert scheduler.last_epoch == math.floor(progress + 1e-9)


@pytest.mark.parametrize(("by", "steps"), [("progress", 7), ("epoch", 2), ("manual", 0)])
def test_only_the_chosen_measure_moves_the_scheduler(by: str, steps: int) -> None:
    counter = Counter()
    schedule = LRSchedule(counter, by=by)
    for epoch in range(2):
        schedule.advance(3.5 * (epoch + 1))
        schedule.end_epoch()
    assert counter.steps == steps


@pytest.mark.parametrize("by", ["progress", "epoch"])
def test_a_scheduler_that_the_script_steps_too_is_refused(by: str) -> None:
    scheduler = make_scheduler()
    schedule = LRSchedule(scheduler, by=by)
    schedule.advance(1.0)
    schedule.end_epoch()
    scheduler.step()
    with pytest.raises(LoopError, match=r"scheduler\.step"):
        schedule.advance(2.0) if by == "progress" else schedule.end_epoch()


def test_a_scheduler_may_be_wound_forward_before_it_is_first_stepped_and_after_a_load() -> None:
    scheduler = make_scheduler()
    schedule = LRSchedule(scheduler, by="progress")
    scheduler.step()
    schedule.advance(1.0)
    schedule.load_state_dict(schedule.state_dict())
    scheduler.step()
    schedule.advance(2.0)
    assert scheduler.last_epoch == 4


@pytest.mark.parametrize(("by", "length"), [("progress", "base batch"), ("epoch", "epochs")])
def test_a_scheduler_that_ends_before_the_run_says_how_long_it_must_be(by: str, length: str) -> None:
    schedule = LRSchedule(make_scheduler(lr_scheduler.OneCycleLR, max_lr=1.0, total_steps=2), by=by)
    with pytest.raises(ConfigError, match=length):
        for number in range(1, 4):
            schedule.advance(float(number))
            schedule.end_epoch()


def test_an_error_of_a_scheduler_without_an_end_stays_its_own() -> None:
    def broken(step: int) -> float:
        return 1.0 if step == 0 else math.log(-step)

    schedule = LRSchedule(make_scheduler(lr_scheduler.LambdaLR, lr_lambda=broken), by="progress")
    with pytest.raises(ValueError, match=r"math domain|positive") as raised:
        schedule.advance(1.0)
    assert not isinstance(raised.value, ConfigError)


def test_a_measure_of_progress_that_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigError, match="schedule"):
        LRSchedule(Counter(), by="steps")


@pytest.mark.parametrize("by", ["progress", "epoch"])
def test_a_scheduler_that_needs_a_metric_is_the_users_to_step(by: str) -> None:
    plateau = lr_scheduler.ReduceLROnPlateau(make_optimizer())
    with pytest.raises(ConfigError, match="ReduceLROnPlateau"):
        LRSchedule(plateau, by=by)
    LRSchedule(plateau, by="manual").advance(5.0)
    assert plateau.last_epoch == 0


@pytest.mark.parametrize("wrong", [lr_scheduler.StepLR, lambda step: 0.1, "cosine", object(), None])
def test_what_is_no_scheduler_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="scheduler"):
        schedule_of(make_optimizer(), wrong, by="progress")


def test_a_scheduler_of_another_optimizer_is_refused_and_one_that_shares_its_groups_is_taken() -> None:
    mine, other = make_optimizer(), make_optimizer()
    scheduler = lr_scheduler.ExponentialLR(other, 0.9)
    with pytest.raises(ConfigError, match="ExponentialLR"):
        schedule_of(mine, scheduler, by="progress")
    mine.param_groups = other.param_groups
    assert schedule_of(mine, scheduler, by="progress").scheduler is scheduler


def test_a_scheduler_that_does_not_tell_its_optimizer_is_taken() -> None:
    counter = Counter()
    assert schedule_of(make_optimizer(), counter, by="progress").scheduler is counter
