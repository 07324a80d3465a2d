"""An example ends where its plain twin ends: on one process, on two, and on workers of which one is killed."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from swell.telemetry import read_events
from swell.telemetry.chaos_report import report_chaos
from tests.workers import run_processes

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
# Epochs, samples, and how far apart two results may be: more than two seeds of the plain script are.
CASES = {"vae": (3, 512, 0.05), "lora": (3, 256, 0.1), "streaming": (2, 512, 0.25)}


def result_of(name: str, script: str, folder: str, arguments: list[str]) -> float:
    """What the script's main function returns; the script runs in ``folder``."""
    os.chdir(folder)
    sys.argv = [script, *arguments]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return runpy.run_path(str(EXAMPLES / name / script))["main"]()


def arguments_of(name: str) -> list[str]:
    epochs, limit, _ = CASES[name]
    return ["--epochs", str(epochs), "--limit", str(limit)]


@pytest.mark.distributed
@pytest.mark.parametrize("name", CASES)
def test_one_process_and_two_end_where_the_plain_script_ends(name: str, tmp_path: Path) -> None:
    alone = {"RANK": "", "WORLD_SIZE": ""}  # no launcher
    tolerance = CASES[name][2]
    (plain,) = run_processes(
        1, result_of, name, "train_torch.py", str(tmp_path), arguments_of(name), environ=alone, timeout_s=120
    )
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        folder.mkdir()
        results = run_processes(
            workers, result_of, name, "train_swell.py", str(folder), arguments_of(name), timeout_s=120
        )
        assert results == pytest.approx([plain] * workers, rel=tolerance)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("name", CASES)
def test_workers_of_which_one_is_killed_lose_and_repeat_no_sample(name: str, tmp_path: Path) -> None:
    epochs, limit, _ = CASES[name]
    line = [sys.executable, "-m", "swell", "chaos", "--workers", "1:2", "--start", "2", "--fail-at", "1:5:reduce"]
    line += ["--show", "none", "--run-dir", str(tmp_path / "runs" / name), str(EXAMPLES / name / "train_swell.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*line, *arguments_of(name)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    report = report_chaos(list(read_events(tmp_path / "runs" / name / "events.jsonl")))
    assert report.whole and report.samples == epochs * limit
