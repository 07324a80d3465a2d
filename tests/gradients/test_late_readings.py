"""Figures are handed out once each, in order, with what belongs to them; from an accelerator later."""

from __future__ import annotations

import time

import pytest
import torch

from swell.gradients.late_readings import LateReadings
from tests.devices import needs_cuda


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_figures_on_the_host_are_read_at_once(exact: bool, dtype: torch.dtype) -> None:
    readings: LateReadings[str] = LateReadings(exact=exact)
    assert readings.push(torch.tensor([1.5, 2.0], dtype=dtype), "first") == [([1.5, 2.0], "first")]
    assert readings.push(torch.tensor([3.0], dtype=dtype), "second") == [([3.0], "second")]
    assert readings.drain() == []


@needs_cuda
def test_figures_on_a_device_come_with_the_next_push_in_order() -> None:
    readings: LateReadings[int] = LateReadings(exact=False)
    figures = torch.zeros(2, device="cuda")
    came = []
    for number in range(4):
        torch.cuda._sleep(10**7)
        came += readings.push(figures + number, number)
        assert [payload for _, payload in came] == list(range(number))
    came += readings.drain()
    assert came == [([float(number)] * 2, number) for number in range(4)]
    assert readings.drain() == []


@needs_cuda
def test_figures_that_are_not_urgent_come_together_in_order() -> None:
    readings: LateReadings[int] = LateReadings(exact=False)
    loss, came = torch.zeros(1, device="cuda"), []
    came += readings.push(loss, 0)  # urgent, so the clock of those that wait starts here
    for number in range(1, 20):
        came += readings.push(loss.fill_(number), number, urgent=False)  # written over, as a CUDA graph does
        if number == 10:
            came += readings.push(torch.arange(3.0, device="cuda"), -1)
    came += readings.drain()
    expected = [([float(number)], number) for number in range(20)]
    assert came == [*expected[:11], ([0.0, 1.0, 2.0], -1), *expected[11:]]
    assert readings.drain() == []


@needs_cuda
def test_figures_of_another_stream_are_waited_for_on_theirs() -> None:
    readings: LateReadings[int] = LateReadings(exact=False)
    side, came = torch.cuda.Stream(), []
    came += readings.push(torch.zeros(1, device="cuda"), 0)
    came += readings.push(torch.ones(1, device="cuda"), 1, urgent=False)
    with torch.cuda.stream(side):
        torch.cuda._sleep(10**7)
        came += readings.push(torch.full((1,), 2.0, device="cuda"), 2, urgent=False)
    assert came == [([0.0], 0), ([1.0], 1)]
    assert readings.drain() == [([2.0], 2)]


@needs_cuda
def test_figures_wait_for_no_more_than_a_moment() -> None:
    readings: LateReadings[int] = LateReadings(exact=False)
    readings.push(torch.zeros(1, device="cuda"), 0)
    time.sleep(0.3)  # a long step
    assert readings.push(torch.ones(1, device="cuda"), 1, urgent=False) == [([0.0], 0)]
    torch.cuda.synchronize()
    assert readings.push(torch.ones(1, device="cuda"), 2, urgent=False) == [([1.0], 1)]


@needs_cuda
def test_a_host_that_is_ahead_waits_for_figures_only_if_they_are_urgent_or_many() -> None:
    readings: LateReadings[int] = LateReadings(exact=False)
    torch.cuda._sleep(2 * 10**9)  # about a second
    ahead = [readings.push(torch.ones((), device="cuda"), number, urgent=False) for number in range(40)]
    assert ahead == [[]] * 40
    came = readings.push(torch.ones((), device="cuda"), 40)
    came += readings.push(torch.ones((), device="cuda"), 41, urgent=False)
    assert came == [([1.0], number) for number in range(41)]
    torch.cuda._sleep(2 * 10**9)
    many = [reading for number in range(42, 800) for reading in readings.push(came_of(number), number, urgent=False)]
    assert len(many) >= 800 - 42 - 64 * 6, "no more than so many are ever under way"
    assert [*many, *readings.drain()] == [([1.0], 41), *(([float(number)], number) for number in range(42, 800))]


def came_of(number: int) -> torch.Tensor:
    return torch.full((), float(number), device="cuda")


@needs_cuda
def test_exact_figures_on_a_device_are_waited_for() -> None:
    readings: LateReadings[int] = LateReadings(exact=True)
    assert readings.push(torch.ones(1, device="cuda"), 7) == [([1.0], 7)]


def test_figures_on_the_host_are_not_held() -> None:
    readings: LateReadings[str] = LateReadings(exact=False)
    assert readings.hold([torch.tensor(1.5), torch.tensor([2.0])], "first") == [([1.5, 2.0], "first")]


@needs_cuda
def test_held_figures_come_in_order_with_those_that_are_copied() -> None:
    readings: LateReadings[int] = LateReadings(exact=False)
    came = readings.push(came_of(0), 0)  # the clock of those that wait starts here
    for number in range(1, 160):
        if number % 7 == 0:
            came += readings.push(torch.full((3,), float(number), device="cuda"), number, urgent=number % 2 == 0)
        elif number % 5 == 0:
            came += readings.hold([came_of(number), came_of(-number).double()], number)
        else:
            came += readings.hold([came_of(number)], number)
    came += readings.drain()
    assert [payload for _, payload in came] == list(range(160))
    for values, number in came:
        sizes = 3 if number and number % 7 == 0 else 2 if number and number % 5 == 0 else 1
        expected = [float(number)] * sizes
        assert values == ([expected[0], -expected[1]] if sizes == 2 else expected)
    assert readings.drain() == []


@needs_cuda
def test_held_figures_that_the_script_wrote_to_are_unknown_and_later_ones_copied() -> None:
    readings: LateReadings[int] = LateReadings(exact=False)
    readings.push(came_of(-1), -1)
    total, came = torch.zeros((), device="cuda"), []
    for number in range(140):
        loss = came_of(number)
        came += readings.hold([loss], number)
        total = loss if number == 3 else total.add_(loss) if number > 3 else total
        if number > 70:
            loss.fill_(-1.0)  # late, when each is copied at once
    came += readings.drain()
    expected = [([] if number == 3 else [float(number)], number) for number in range(140)]
    assert came == [([-1.0], -1), *expected]


@needs_cuda
def test_held_figures_are_read_on_the_stream_that_they_were_computed_on() -> None:
    readings: LateReadings[int] = LateReadings(exact=False)
    side, came = torch.cuda.Stream(), []
    with torch.cuda.stream(side):
        readings.push(came_of(0), 0)
        torch.cuda._sleep(10**8)
        came += readings.hold([came_of(1)], 1)
    came += readings.hold([came_of(2)], 2)
    assert [*came, *readings.drain()] == [([0.0], 0), ([1.0], 1), ([2.0], 2)]
