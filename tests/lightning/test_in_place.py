"""Under ``swell run`` the workers of a Fabric or Lightning script join, leave and are killed; the weights stay."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.supervisor.supervised import SupervisedRun

pytestmark = [pytest.mark.slow, pytest.mark.distributed]

HERE = Path(__file__).parent
EPOCHS, SAMPLES = 8, 130


def steps(folder: Path) -> list[dict[str, int]]:
    lines = [line for path in folder.glob("steps-*.jsonl") for line in path.read_text().splitlines(keepends=True)]
    return sorted((json.loads(line) for line in lines if line.endswith("\n")), key=lambda row: row["step"])


def weights(folder: Path) -> list[float]:
    return json.loads((folder / "weights.json").read_text())


def undisturbed(folder: Path, script: str) -> list[float]:
    """The weights of the same script on one worker, without a supervisor."""
    folder.mkdir()
    line = [sys.executable, str(HERE / script), str(folder), str(EPOCHS)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return weights(folder)


def run_of(folder: Path, script: str, *options: str) -> SupervisedRun:
    """A run that takes its time while there is a file named ``slow``."""
    folder.mkdir(exist_ok=True)
    (folder / "slow").touch()
    return SupervisedRun.of(folder, *options, str(HERE / script), str(folder), str(EPOCHS))


def wait_for_workers(run: SupervisedRun, number: int) -> None:
    """Wait until three more steps were made by this number of workers."""
    seen = len([row for row in steps(run.folder) if row["workers"] == number])
    run.wait_for(lambda: len([row for row in steps(run.folder) if row["workers"] == number]) > seen + 3, timeout_s=400)


SCRIPTS = ["fabric_script.py", "trainer_script.py"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_join_and_a_kill_leave_the_weights_of_the_undisturbed_run(tmp_path: Path, script: str) -> None:
    with run_of(tmp_path / "moved", script, "--workers", "1:3", "--start", "1") as run:
        wait_for_workers(run, 1)
        run.ask("resize", workers=2)
        wait_for_workers(run, 2)
        first = min(run.status()["workers"], key=lambda worker: worker["member"])
        os.kill(first["pid"], signal.SIGKILL)  # the one that logs and saves
        wait_for_workers(run, 1)
        (run.folder / "slow").unlink()
        assert run.end(timeout_s=500) == 0, run.terminal()
    made = [row["step"] for row in steps(tmp_path / "moved")]
    assert sorted(set(made)) == list(range(1, max(made) + 1)), "a step was not logged by the first worker"
    assert len(made) == len(set(made)), "two workers took themselves for the first"
    assert weights(tmp_path / "moved") == pytest.approx(undisturbed(tmp_path / "still", script), rel=1e-12)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_stop_in_the_middle_of_an_epoch_is_resumed_on_another_number_of_workers(tmp_path: Path, script: str) -> None:
    folder = tmp_path / "moved"
    with run_of(folder, script, "--workers", "2") as run:
        wait_for_workers(run, 2)
        run.ask("stop")
        assert run.end(timeout_s=400) == 143, run.terminal()
    before = steps(folder)[-1]
    assert before["step"] % 11 != 0, "stopped at the end of an epoch, so nothing was proved"
    with run_of(folder, script, "--workers", "1") as run:
        (folder / "slow").unlink()
        assert run.end(timeout_s=500) == 0, run.terminal()
    made = [row["step"] for row in steps(folder)]
    assert made == list(range(1, 11 * EPOCHS + 1))
    assert weights(folder) == pytest.approx(undisturbed(tmp_path / "still", script), rel=1e-12)
