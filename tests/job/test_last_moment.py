"""A worker that joins when the last step is done makes the rest of the run with the others."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from swell.supervisor.control import ask
from tests.job.last_moment_worker import STEPS, N
from tests.supervisor.forked import ForkedRun

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


@pytest.mark.parametrize("kind", ["steps", "epochs", "count"])
def test_a_worker_that_joins_after_the_last_step_evaluates_and_saves_with_the_others(tmp_path: Path, kind: str) -> None:
    arguments = [str(tmp_path), kind]
    with ForkedRun(tmp_path, "tests.job.last_moment_worker:train", *arguments, workers="1:2", start=1) as run:
        while not (tmp_path / "waits").exists():
            assert run.process.is_alive(), run.terminal()
            time.sleep(0.02)
        ask(run.run_dir, "resize", workers=2)
        assert run.end(timeout_s=120) == 0, run.terminal()
    assert "exited with status 1" not in run.terminal() and "killed" not in run.terminal()
    first, second = (json.loads(path.read_text()) for path in tmp_path.glob("result-*.json"))
    assert first == second
    assert (first["steps"], first["samples"], first["replicas"]) == (STEPS, 2 * N, 2)
    assert "evaluated" in first["found"][0]
