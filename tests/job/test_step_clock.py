"""Steps are timed from when they are laid out to when they are committed, on a device by the device."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import swell
from swell.job.step_clock import Duration, StepClock
from tests.devices import needs_cuda
from tests.job.scenario import Points, make_model, mean_loss


def test_the_host_is_timed_by_its_own_clock() -> None:
    clock = StepClock(torch.device("cpu"))
    time.sleep(0.05)
    before = time.perf_counter()
    clock.start(exact=True)
    time.sleep(0.01)
    took = clock.stop()
    passed = time.perf_counter() - before
    time.sleep(0.05)
    assert 0.01 <= took.seconds <= passed


class Moment:
    """Stands in for an event of a device: it has a time once it was waited for."""

    def __init__(self, at_ms: float) -> None:
        self.at_ms, self.waits = at_ms, 0

    def synchronize(self) -> None:
        self.waits += 1

    def elapsed_time(self, other: Moment) -> float:
        assert other.waits
        return other.at_ms - self.at_ms


def test_a_device_is_waited_for_once_and_only_when_somebody_asks() -> None:
    began, ended, spare = Moment(10.0), Moment(260.0), list[Moment]()
    took = Duration(began, ended, spare)
    assert ended.waits == 0 and not spare
    assert took.seconds == took.seconds == 0.25
    assert ended.waits == 1
    assert spare == [began, ended]  # for another step to use


def test_a_device_is_not_asked_where_only_the_mean_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", lambda **options: pytest.fail("an event was made"))
    clock = StepClock(torch.device("cuda"))
    clock.start(exact=False)
    assert clock.stop().seconds >= 0


def test_what_the_user_does_between_steps_is_not_in_their_time() -> None:
    told: list[float] = []

    class Steps:
        def emit(self, event: Any) -> None:
            if event.kind == "step":
                told.append(event.step_s)

        def close(self) -> None:
            pass

    job = swell.Job(batch=4, progress=False, sinks=[Steps()], statistics=False)
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y, *_ in job.loader(Points(16)):
        time.sleep(0.02)
        job.backward(mean_loss(model, x, y))
        job.step()
        time.sleep(0.2)
    job.close()
    assert len(told) == 4
    assert all(seconds >= 0.02 for seconds in told) and min(told) < 0.2


@needs_cuda
def test_a_device_is_timed_by_what_it_does_and_not_by_when_it_was_told() -> None:
    clock = StepClock(torch.device("cuda"))
    torch.cuda._sleep(10**8)
    clock.start(exact=True)
    torch.cuda._sleep(10**7)
    short = clock.stop()
    clock.start(exact=True)
    torch.cuda._sleep(4 * 10**7)
    long = clock.stop()
    assert 3 < long.seconds / short.seconds < 5
