"""A worker that is stuck, or that leaves alone, is found; only it is ended, and what the others have is kept."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from swell.checkpoint.store import Store
from swell.telemetry import read_events
from swell.telemetry.chaos_report import ChaosReport, report_chaos
from tests.supervisor.supervised import SupervisedRun, pids

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

SCRIPT = str(Path(__file__).with_name("stuck_script.py"))


def start(folder: Path, how: str, *options: str, epochs: int = 3) -> SupervisedRun:
    return SupervisedRun.of(folder, "--workers", "1:2", "--start", "2", *options, SCRIPT, str(folder), how, str(epochs))


def report(folder: Path) -> ChaosReport:
    return report_chaos(read_events(folder / "run" / "events.jsonl"))


def saved_step(folder: Path) -> int:
    newest = Store(folder / "run").newest()
    return 0 if newest is None else newest.step


def stuck(run: SupervisedRun) -> dict[int, int]:
    """Wait until one worker is stuck; the process ids by member."""
    run.wait_for((run.folder / "stuck").exists)
    return pids(run.status()["workers"])


@pytest.mark.parametrize("how", ["sleep", "spin"])
def test_only_the_culprit_is_ended_and_the_others_go_on(how: str, tmp_path: Path) -> None:
    with start(tmp_path, how, "--stall-timeout", "10") as run:
        assert run.end(timeout_s=120) == 0, run.terminal()
        ended = re.findall(r"worker ([12]) is ended: (.*)", run.terminal())
        assert [member for member, _ in ended] == ["2"], ended
        assert re.search(r"made no progress for \d+ s in a step.*--stall-timeout is 10 s", ended[0][1])
    result = report(tmp_path)
    assert (result.lost, result.repeated, result.rewound, result.steps) == (0, 0, 0, 24)


def test_a_run_with_a_stuck_worker_saves_when_it_is_stopped(tmp_path: Path) -> None:
    with start(tmp_path, "sleep", "--grace", "8", epochs=1000) as run:
        stuck(run)
        run.ask("stop")
        assert run.end() == 143, run.terminal()
        assert "worker 2 is ended: made no progress" in run.terminal()
        assert "the others cannot save before it is gone" in run.terminal()
    assert saved_step(tmp_path) == int((tmp_path / "steps").read_text()) >= 5


def test_a_stopped_process_does_not_keep_the_others_from_saving(tmp_path: Path) -> None:
    with start(tmp_path, "never", "--grace", "8", epochs=1000) as run:
        run.wait_for(lambda: (tmp_path / "steps").exists() and int((tmp_path / "steps").read_text() or 0) > 5)
        run.ask("chaos", rank=1, signal="SIGSTOP")
        run.ask("stop")
        assert run.end() == 143, run.terminal()
    assert saved_step(tmp_path) == int((tmp_path / "steps").read_text())


@pytest.mark.parametrize("how", ["sleep", "spin"])
def test_with_the_supervisor_gone_too_what_can_be_saved_is_saved_and_nobody_is_left(how: str, tmp_path: Path) -> None:
    with start(tmp_path, how, "--grace", "4", "--stall-timeout", "6", epochs=1000) as run:
        workers = stuck(run)
        run.process.kill()
        run.process.wait()
        for pid in workers.values():
            run.wait_for_end_of_process(pid)
    assert saved_step(tmp_path) == int((tmp_path / "steps").read_text()) >= 5
    result = report(tmp_path)
    assert (result.lost, result.repeated, result.rewound) == (0, 0, 0)


def test_with_the_supervisor_gone_healthy_workers_save_together(tmp_path: Path) -> None:
    with start(tmp_path, "never", epochs=1000) as run:
        run.wait_for(lambda: (tmp_path / "steps").exists() and int((tmp_path / "steps").read_text() or 0) > 5)
        workers = pids(run.status()["workers"])
        run.process.kill()
        run.process.wait()
        for pid in workers.values():
            run.wait_for_end_of_process(pid)
    assert saved_step(tmp_path) == int((tmp_path / "steps").read_text())


@pytest.mark.parametrize("how", ["exit", "break"])
def test_a_worker_that_leaves_the_loop_alone_ends_the_run_at_once_and_in_words(how: str, tmp_path: Path) -> None:
    with start(tmp_path, how, "--grace", "3000", epochs=1000) as run:
        assert run.end(timeout_s=120) == 1, run.terminal()
        assert "worker 2 ended its script while others were still training" in run.terminal()
        assert "evaluation" not in run.terminal()
        assert ("rank 1 left the training loop" in run.terminal()) == (how == "break")
    assert not [pid for pid in os.listdir("/proc") if pid.isdecimal() and of_run(pid, tmp_path)]


def of_run(pid: str, folder: Path) -> bool:
    try:
        return str(folder).encode() in Path("/proc", pid, "cmdline").read_bytes()
    except OSError:
        return False
