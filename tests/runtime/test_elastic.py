"""Real workers come, go and die, and those that stay go on in their own processes.

Pauses are printed, not asserted: what they may be is the business of benchmarks on a quiet machine.
"""

from __future__ import annotations

import os
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.supervisor.supervised import SupervisedRun, pids

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


def check_that_no_step_was_lost(run: SupervisedRun) -> None:
    """Every member's steps follow one another from where it joined, and each world starts from the newest step."""
    newest = 0
    generations: dict[int, int] = {}
    for event in run.seen():
        if event["event"] == "step":
            newest = max(newest, event["step"])
        elif event["event"] == "formed":
            generations.setdefault(event["generation"], event["step"])
            assert event["step"] == generations[event["generation"]], "all members go on from one step"
    for member in {event["member"] for event in run.seen()}:
        mine = [e for e in run.seen() if e["member"] == member and e["event"] in ("step", "formed")]
        for earlier, later in pairwise(mine):
            assert later["step"] - earlier["step"] == (later["event"] == "step") or later["event"] == "formed"
            assert later["step"] >= earlier["step"], "no committed step is undone"


def show_pauses(run: SupervisedRun) -> None:
    for event in run.seen("formed"):
        if event["why"] != "start":
            facts = {name: event[name] for name in ("member", "generation", "size", "why", "step")}
            print(f"pause {event['pause_s']:.3f} s {facts}")


def wait_for_end_of(run: SupervisedRun, member: int) -> None:
    run.wait_for(lambda: member not in pids(run.status()["workers"]))


def test_workers_join_leave_die_and_hang_while_the_others_keep_their_processes(tmp_path: Path) -> None:
    with SupervisedRun(tmp_path, "--workers", "1:3", "--start", "1", "--hang-timeout", "4") as run:
        one = pids(run.training([1]))
        run.ask("resize", workers=2)
        two = pids(run.training([1, 2]))
        assert two[1] == one[1]
        run.ask("resize", workers=3)
        three = pids(run.training([1, 2, 3]))
        assert (three[1], three[2]) == (two[1], two[2])

        run.ask("resize", workers=2)  # with notice
        run.training([1, 2])
        wait_for_end_of(run, 3)
        assert "worker 3 has left" in run.terminal()

        run.ask("chaos", signal="SIGKILL", rank=1)
        assert pids(run.training([1, 4]))[1] == one[1]
        run.ask("chaos", signal="SIGKILL", rank=0)
        four = pids(run.training([4, 5]))
        run.ask("chaos", signal="SIGSTOP", rank=1)
        assert pids(run.training([4, 6]))[4] == four[4]
        assert "gave no sign of life" in run.terminal()
        assert run.status()["restarts"] == 3  # resizes are not counted

        os.kill(pids(run.status()["workers"])[4], signal.SIGTERM)  # its own notice: the other goes on without it
        run.training([6])
        run.ask("stop")
        assert run.end() == 143
        assert {event["member"] for event in run.seen("stopped")} == {6}
        check_that_no_step_was_lost(run)
        show_pauses(run)


@pytest.mark.parametrize("victim", [1, 2])
def test_a_worker_killed_in_the_middle_of_a_sum_costs_that_sum_only(tmp_path: Path, victim: int) -> None:
    worker = ("--numbers", "8000000", "--die", f"reducing:3:{victim}")
    options = ("--workers", "1:3", "--start", "3", "--on-worker-failure", "shrink")
    with SupervisedRun(tmp_path, *options, steps=8, worker=worker) as run:
        assert run.end() == 0
        ends = {event["member"]: event["step"] for event in run.seen("end")}
        assert ends == dict.fromkeys({1, 2, 3} - {victim}, 8)
        assert {event["member"] for event in run.seen("lost")} == {1, 2, 3} - {victim}
        check_that_no_step_was_lost(run)
        show_pauses(run)


@pytest.mark.parametrize("calls", [1, 2, 4])
def test_a_worker_killed_while_it_joins_is_given_up_by_the_others(tmp_path: Path, calls: int) -> None:
    """It dies when it has said where it is; when it has heard of one other; when all begin to connect."""
    options = ("--workers", "1:3", "--start", "2", "--on-worker-failure", "shrink")
    with SupervisedRun(tmp_path, *options, worker=("--die", f"joining:{calls}:3")) as run:
        before = pids(run.training([1, 2]))
        at = max(event["step"] for event in run.seen("step"))
        run.ask("resize", workers=3)
        run.wait_for(lambda: "worker 3 was killed by signal 9" in run.terminal())
        assert pids(run.training([1, 2], beyond=at)) == before
        check_that_no_step_was_lost(run)
        show_pauses(run)


def test_workers_whose_supervisor_is_killed_save_and_stop(tmp_path: Path) -> None:
    with SupervisedRun(tmp_path, "--workers", "2") as run:
        workers = pids(run.training([1, 2]))
        run.process.kill()
        run.wait_for_events("stopped", 2)
        stops: list[dict[str, Any]] = run.seen("stopped")
        assert {event["member"] for event in stops} == {1, 2}
        assert len({event["step"] for event in stops}) == 1, "all stop after the same step"
        assert "supervisor lost" in {event["source"] for event in stops}
        for pid in workers.values():
            run.wait_for_end_of_process(pid)


def test_training_that_comes_to_its_end_ends_the_run(tmp_path: Path) -> None:
    with SupervisedRun(tmp_path, "--workers", "3", steps=20) as run:
        assert run.end() == 0
        assert [event["step"] for event in run.seen("end")] == [20, 20, 20]
        assert all(event["size"] == 3 for event in run.seen("step"))
