"""TRL's trainers through the mixin: SFT, DPO and Reward run as they are, and those that generate are refused."""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import trl

import swell
from swell.errors import ConfigError
from swell.supervisor.control import ask
from tests.supervisor.forked import ForkedRun
from tests.trainers.test_transformers_elastic import wait_for, workers
from tests.trainers.test_transformers_equality import near
from tests.trainers.trl_worker import train
from tests.workers import run_processes

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


@pytest.mark.parametrize("kind", ["sft", "dpo", "reward"])
def test_one_and_two_workers_give_the_same_weights(tmp_path: Path, kind: str) -> None:
    alone = train({"kind": kind, "folder": str(tmp_path / "1")})
    assert alone["steps"] == 8 and "loss" in alone["names"] and "global_batch" in alone["names"]
    both = run_processes(2, train, {"kind": kind, "folder": str(tmp_path / "2")}, timeout_s=400)
    assert both[0]["digest"] == both[1]["digest"] and [result["first"] for result in both] == [True, False]
    near(both[0], alone, 1e-6)  # TRL's losses are computed in float32


def steps(folder: Path) -> list[dict[str, Any]]:
    path = folder / "heard"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_sft_workers_that_join_and_die_leave_the_same_weights(tmp_path: Path) -> None:
    own = {"folder": str(tmp_path / "out"), "result": str(tmp_path / "result.json"), "heard": str(tmp_path / "heard")}
    chosen = {"kind": "sft", "sleep": 5.0, **own}
    function = "tests.trainers.trl_worker:train"
    with ForkedRun(tmp_path, function, chosen, workers="1:2", start=1, max_restarts=10) as run:
        wait_for(run, lambda: len(steps(tmp_path)) >= 1)
        ask(run.run_dir, "resize", workers=2)
        wait_for(run, lambda: any(line["replicas"] == 2 for line in steps(tmp_path)))
        os.kill(workers(run)[-1]["pid"], signal.SIGKILL)
        assert run.end(timeout_s=240) == 0, run.terminal()
    near(
        json.loads((tmp_path / "result.json").read_text()), train({"kind": "sft", "folder": str(tmp_path / "1")}), 1e-6
    )


@pytest.mark.parametrize("name", ["GRPOTrainer", "RLOOTrainer"])
def test_trainers_that_generate_their_samples_are_refused_with_the_reason(name: str) -> None:
    kind: Any = type("Mine", (swell.transformers.Elastic, getattr(trl, name)), {})
    with pytest.raises(ConfigError, match=f"Mine is a {name}; expected .* It generates its samples with the model"):
        kind()
