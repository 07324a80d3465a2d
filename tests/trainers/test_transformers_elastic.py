"""Hugging Face's Trainer under ``swell run``: workers join, die and stop, and the weights are the undisturbed run's."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swell.errors import ConfigError
from swell.supervisor.control import ask
from tests.supervisor.forked import ForkedRun
from tests.trainers.test_transformers_equality import near
from tests.trainers.transformers_worker import train

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

WORKER = "tests.trainers.transformers_worker:train"


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    args = {
        "output_dir": str(folder / "out"), "per_device_train_batch_size": 4, "num_train_epochs": 3,
        "eval_strategy": "steps", "eval_steps": 5, "per_device_eval_batch_size": 4, "save_strategy": "steps",
        "save_steps": 5, "save_total_limit": 2, **more.pop("args", {}),
    }  # fmt: skip
    return {
        "samples": 100, "eval": 21, "args": args, "job": {"batch": 16, "save": None}, "heard": str(folder / "heard"),
        "result": str(folder / "result.json"), **more,
    }  # fmt: skip


def heard(folder: Path, event: str) -> list[dict[str, Any]]:
    path = folder / "heard"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in map(json.loads, lines) if line["event"] == event]


def wait_for(run: ForkedRun, is_true: Callable[[], bool], timeout_s: float = 240.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert run.process.is_alive() and time.monotonic() < deadline, run.terminal()
        time.sleep(0.05)


def workers(run: ForkedRun) -> list[dict[str, Any]]:
    try:
        return ask(run.run_dir, "status")["workers"]
    except ConfigError:
        return []


def reached(folder: Path, step: int) -> Callable[[], bool]:
    return lambda: any(line["step"] >= step for line in heard(folder, "step"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("alone")
    return train(settings(folder))


def same_run(folder: Path, undisturbed: dict[str, Any]) -> dict[str, Any]:
    """The result of the run, which must be the undisturbed one's: weights, counts, evaluations."""
    result = json.loads((folder / "result.json").read_text())
    near(result, undisturbed, 1e-10)
    assert result["steps"] == undisturbed["steps"] == 21
    for name in ("loss", "eval_loss", "eval_mean"):
        mine, theirs = ([line[name] for line in one["history"] if name in line] for one in (result, undisturbed))
        assert mine == pytest.approx(theirs, rel=1e-6), name
    return result


def test_a_worker_that_joins_and_one_that_is_killed_leave_the_same_weights(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    chosen = settings(tmp_path, sleep=0.3)
    with ForkedRun(tmp_path, WORKER, chosen, workers="1:3", start=1, max_restarts=10) as run:
        wait_for(run, reached(tmp_path, 2))
        ask(run.run_dir, "resize", workers=2)
        wait_for(run, lambda: any(line.get("replicas") == 2 for line in heard(tmp_path, "log")))
        first = heard(tmp_path, "log")[-1]["pid"]
        os.kill(first, signal.SIGKILL)
        assert run.end(timeout_s=240) == 0, run.terminal()
    same_run(tmp_path, undisturbed)
    begins = heard(tmp_path, "begin")
    assert begins[0]["pid"] == first and len({line["pid"] for line in begins}) == len(begins)
    assert all(line["step"] == 0 for line in begins[:1])
    logs = heard(tmp_path, "log")
    owners = [line["pid"] for line in logs]
    assert owners[0] == first and owners[-1] != first
    changes = sum(one != other for one, other in itertools.pairwise(owners))
    assert changes == 1  # one worker reports at a time, and a newcomer never takes over from a living one
    saves = [line["step"] for line in heard(tmp_path, "save")]
    assert saves == sorted(set(saves)) and saves[-1] == 21


def test_a_worker_killed_in_an_evaluation_leaves_the_same_figures(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    kill = {"step": 5, "rank": 1, "mark": str(tmp_path / "killed")}
    chosen = settings(tmp_path, kill_in_evaluation=kill)
    with ForkedRun(tmp_path, WORKER, chosen, workers="2", start=2, max_restarts=10) as run:
        assert run.end(timeout_s=240) == 0, run.terminal()
    assert (tmp_path / "killed").exists()
    same_run(tmp_path, undisturbed)


def test_a_run_that_was_stopped_in_an_epoch_resumes_on_other_workers(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    chosen = settings(tmp_path, sleep=0.3)
    with ForkedRun(tmp_path, WORKER, chosen, workers="1", start=1, max_restarts=10) as run:
        wait_for(run, reached(tmp_path, 9))
        ask(run.run_dir, "stop")
        assert run.end(timeout_s=120) == 143, run.terminal()
    stopped = heard(tmp_path, "step")[-1]["step"]
    assert 9 <= stopped < 14
    with ForkedRun(tmp_path, WORKER, {**chosen, "sleep": 0.0}, workers="3", start=3, max_restarts=10) as run:
        assert run.end(timeout_s=240) == 0, run.terminal()
    same_run(tmp_path, undisturbed)
