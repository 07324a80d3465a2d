"""A heartbeat says what the main thread does, from what it was seen to do and from the time its processes used."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from swell.runtime import activity
from swell.runtime.activity import MainThread, session_processor_s


class Clock:
    """A clock that is moved by hand."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        patch.setattr(activity.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def said(main: MainThread, *names: str) -> list[Any]:
    report = main.report()
    return [report[name] for name in names]


def test_a_usual_step_is_the_median_of_those_in_this_world(clock: Clock) -> None:
    main = MainThread()
    main.enter_world()
    for seconds in (30.0, 1.0, 2.0, 9.0):
        clock.now += seconds
        main.step()
    assert said(main, "usual_s", "progress") == [2.0, 5], "the first step is not counted"
    main.enter_world()
    assert said(main, "usual_s") == [None]


def test_a_wait_counts_as_one_while_the_main_thread_is_seen_in_it(clock: Clock) -> None:
    main = MainThread()
    main.mark("training")
    with main.waiting():
        clock.now += 9.0
        main.poll()
        assert said(main, "waiting", "still_s") == [True, 0.0] and main.waited_s == 9.0
        clock.now += 11.0  # a signal's handler keeps it
        assert said(main, "waiting", "still_s") == [False, 11.0]
    assert said(main, "waiting", "still_s") == [False, 0.0]
    with main.waiting():
        with main.calling(40.0):
            clock.now += 30.0
            assert said(main, "waiting") == [True]
            main.poll()
            clock.now += 30.0
            assert said(main, "waiting") == [True]
            clock.now += 20.0
            assert said(main, "waiting") == [False], "stuck while a world is formed"
        clock.now += 9.0
        assert said(main, "waiting") == [True]
        clock.now += 9.0
        assert said(main, "waiting") == [False]
    with main.waiting(), main.calling(1.0):
        clock.now += 9.0
        assert said(main, "waiting") == [True], "never less than for any wait"


def test_time_in_which_the_whole_process_was_stopped_counts_as_nobodys(clock: Clock) -> None:
    main = MainThread()
    main.mark("loading")
    clock.now += 3600.0
    main.slept(3595.0)
    assert said(main, "doing", "still_s") == ["loading", 5.0]


def test_a_worker_is_idle_where_it_and_the_processes_it_started_compute_nothing(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = [0.0]
    monkeypatch.setattr(activity, "session_processor_s", lambda: spent[0])
    main = MainThread()
    main.mark("training")
    idle = []
    for _ in range(4):
        clock.now += 6.0
        spent[0] += 1.0 if len(idle) == 2 else 0.01
        idle += said(main, "idle")
    assert idle == [False, True, False, True]


def test_the_time_of_processes_that_were_started_is_counted() -> None:
    before = session_processor_s()
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    assert session_processor_s() - before > 0.2
    child.communicate(b"\n")
