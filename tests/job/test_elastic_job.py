"""Guarantees 2, 6 and 7 while workers join, leave and die under a real job: nothing lost, the same model."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.supervisor.supervised import SupervisedRun

SCRIPT = Path(__file__).with_name("elastic_script.py")
ROOT = Path(__file__).parents[2]
EPOCHS = 4

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


def begin(folder: Path, workers: str, *, pause_s: float) -> SupervisedRun:
    folder.mkdir(exist_ok=True)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    options = ("--workers", workers, "--start", workers.split(":")[0], "--max-restarts", "10")
    return SupervisedRun.of(folder, *options, str(SCRIPT), str(folder), str(EPOCHS), str(pause_s))


def records(folder: Path) -> list[dict[str, Any]]:
    found = []
    for path in folder.glob("rows-*.jsonl"):
        found += [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    return found


def steps(folder: Path) -> int:
    return max((record["step"] for record in records(folder) if "step" in record), default=-1)


def weights(folder: Path) -> torch.Tensor:
    return torch.tensor(
        [x for row in json.loads((folder / "weights.json").read_text()) for x in row], dtype=torch.float64
    )


def finish(run: SupervisedRun, folder: Path) -> None:
    run.wait_for(lambda: run.process.poll() is not None, timeout_s=240)
    assert run.process.returncode == 0, run.terminal()
    ends = [r for r in records(folder) if "epoch_end" in r]
    assert {r["epoch_end"]: r["seen"] for r in ends} == {epoch: 130.0 for epoch in range(EPOCHS)}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    import subprocess

    folder = tmp_path_factory.mktemp("alone")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), str(EPOCHS), "0"], env=environment, check=True, timeout=240
    )
    return weights(folder)


def test_joins_and_kills_leave_the_weights_of_the_undisturbed_run(tmp_path: Path, undisturbed: torch.Tensor) -> None:
    with begin(tmp_path, "1:3", pause_s=0.15) as run:
        run.wait_for(lambda: steps(tmp_path) >= 3, timeout_s=120)
        run.ask("resize", workers=3)
        run.wait_for(lambda: any(r.get("replicas") == 3 for r in records(tmp_path)), timeout_s=120)
        victim = max(run.status()["workers"], key=lambda worker: worker["pid"])
        os.kill(victim["pid"], signal.SIGKILL)
        reached = steps(tmp_path)
        run.wait_for(lambda: steps(tmp_path) >= min(reached + 4, 40), timeout_s=120)
        finish(run, tmp_path)
    assert float((weights(tmp_path) - undisturbed).norm() / undisturbed.norm()) < 1e-6


def test_a_stopped_run_is_resumed_and_leaves_the_same_weights(tmp_path: Path, undisturbed: torch.Tensor) -> None:
    with begin(tmp_path, "1:2", pause_s=0.1) as run:
        run.wait_for(lambda: steps(tmp_path) >= 4, timeout_s=120)
        run.ask("stop")
        run.wait_for(lambda: run.process.poll() is not None, timeout_s=120)
        assert run.process.returncode == 143, run.terminal()
    with begin(tmp_path, "2", pause_s=0.0) as run:
        finish(run, tmp_path)
    assert float((weights(tmp_path) - undisturbed).norm() / undisturbed.norm()) < 1e-6
