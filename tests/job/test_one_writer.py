"""One writer at a time: a second run is refused, and a worker from the past writes nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from swell.checkpoint.folder_names import numbered_folders
from swell.checkpoint.reading import inspect
from swell.core.events import Stepped
from swell.telemetry import read_events
from tests.supervisor.supervised import SupervisedRun

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("saving_script.py")
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


def saved_steps(folder: Path) -> list[int]:
    """The steps of the checkpoints in the order of saving."""
    return [inspect(path).step for _, path in numbered_folders(folder / "run" / "checkpoints")]


def wait_for(condition: Callable[[], Any], *, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


@contextmanager
def script(folder: Path, *, steps: int = 100_000) -> Iterator[subprocess.Popen[bytes]]:
    """``python train.py`` by itself."""
    process = subprocess.Popen([sys.executable, str(SCRIPT), str(folder), str(steps)], env=ENVIRONMENT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def supervised(folder: Path, *options: str, restarts: int = 0, steps: int = 100_000) -> SupervisedRun:
    os.environ["PYTHONPATH"] = ENVIRONMENT["PYTHONPATH"]
    line = ["--workers", "1", "--max-restarts", str(restarts), *options, str(SCRIPT), str(folder), str(steps)]
    return SupervisedRun.of(folder, *line)


def test_a_second_run_in_the_same_folder_is_refused_with_who_holds_it(tmp_path: Path) -> None:
    with script(tmp_path) as first:
        wait_for(lambda: saved_steps(tmp_path))
        second = subprocess.run(
            [sys.executable, str(SCRIPT), str(tmp_path), "9"],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert second.returncode == 1
        assert f"is being written by process {first.pid} on" in second.stderr.splitlines()[-1]
        with supervised(tmp_path) as run:
            assert run.end(timeout_s=120) == 1
            assert f"is being written by process {first.pid} on" in run.terminal()
        done = [event.step for event in read_events(tmp_path / "run" / "events.jsonl") if isinstance(event, Stepped)]
        assert done == list(range(1, len(done) + 1)), "one run's steps alone are in the log"
        first.kill()
        first.wait()
        reached = max(saved_steps(tmp_path))
    with script(tmp_path, steps=reached + 2) as third:  # a dead holder does not block
        assert third.wait(timeout=120) == 0
    assert max(saved_steps(tmp_path)) >= reached + 2


def test_a_fresh_start_is_one_start_and_not_one_for_each_worker(tmp_path: Path) -> None:
    with script(tmp_path, steps=9) as first:
        assert first.wait(timeout=120) == 0
    before = saved_steps(tmp_path)
    with supervised(tmp_path, "--fresh", restarts=1) as run:
        run.wait_for(
            lambda: (tmp_path / "run" / "set-aside-1").is_dir() and len(saved_steps(tmp_path)) >= 3, timeout_s=120
        )
        assert saved_steps(tmp_path)[0] == 1
        os.kill(run.status()["workers"][0]["pid"], signal.SIGKILL)
        reached = max(saved_steps(tmp_path))
        run.wait_for(lambda: max(saved_steps(tmp_path)) >= reached + 5, timeout_s=120)
        run.ask("stop")
        run.end(timeout_s=120)
    assert [path.name for path in (tmp_path / "run").glob("set-aside-*")] == ["set-aside-1"]
    aside = [inspect(path).step for _, path in numbered_folders(tmp_path / "run" / "set-aside-1" / "checkpoints")]
    assert aside == before
    steps = saved_steps(tmp_path)
    assert steps == sorted(steps), "no step was begun again from the start"
    record = json.loads((tmp_path / "run" / "control" / "run.json").read_text())
    assert record["options"]["fresh"] is False, "swell resume does not start over again"


def test_a_stopped_worker_of_a_dead_supervisor_writes_nothing_when_it_continues(tmp_path: Path) -> None:
    old: int | None = None
    try:
        with supervised(tmp_path) as run:
            run.wait_for(lambda: saved_steps(tmp_path), timeout_s=120)
            old = run.status()["workers"][0]["pid"]
            assert isinstance(old, int)
            os.kill(old, signal.SIGSTOP)
            run.process.kill()
            run.process.wait()
            reached = max(saved_steps(tmp_path))
            with supervised(tmp_path) as resumed:
                resumed.wait_for(lambda: max(saved_steps(tmp_path)) >= reached + 20, timeout_s=120)
                other = subprocess.run(
                    [sys.executable, str(SCRIPT), str(tmp_path), "9"], env=ENVIRONMENT, capture_output=True, text=True
                )
                assert other.returncode == 1 and "a worker of `swell run`" in other.stderr, other.stderr
                resumed.ask("stop")
                resumed.end(timeout_s=120)
            newest, log = saved_steps(tmp_path), (tmp_path / "run" / "events.jsonl").read_bytes()
            os.kill(old, signal.SIGCONT)
            run.wait_for_end_of_process(old, timeout_s=120)
        assert saved_steps(tmp_path) == newest and max(newest) == newest[-1]
        assert (tmp_path / "run" / "events.jsonl").read_bytes() == log
        logs = "".join(path.read_text() for path in (tmp_path / "run" / "logs").glob("worker-*.log"))
        assert "was taken over by process" in logs
        assert json.loads((tmp_path / "run" / "writer.json").read_text())["token"] >= 2
    finally:
        with suppress(ProcessLookupError, TypeError):
            os.killpg(old, signal.SIGKILL)  # type: ignore[arg-type]
