"""Accelerate's loop, word for word: the plain numbers on one process, and the same on any number of workers."""

from __future__ import annotations

import itertools
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from swell.core.events import Saved
from swell.errors import LoopError
from swell.supervisor.control import ask
from swell.telemetry import read_events
from tests.supervisor.forked import ForkedRun
from tests.trainers import tiny
from tests.trainers.accelerate_worker import train
from tests.trainers.test_transformers_elastic import wait_for
from tests.trainers.test_transformers_equality import near
from tests.workers import run_processes

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

WORKER = "tests.trainers.accelerate_worker:train"


def test_at_a_fixed_batch_on_one_process_it_is_plain_accelerate() -> None:
    plain, ours = train({"samples": 96, "plain": True}), train({"samples": 96})
    near(ours, plain)
    assert ours["history"] == plain["history"] and ours["lr"] == plain["lr"] and ours["length"] == plain["length"]
    assert ours["norms"] == pytest.approx(plain["norms"], rel=1e-9)


def test_one_two_and_three_workers_give_the_same_weights_and_schedule() -> None:
    alone, *others = [run_processes(n, train, {"samples": 100}, timeout_s=300) for n in (1, 2, 3)]
    assert alone[0]["lr"] == pytest.approx(0.01)  # 14 base steps in two epochs: the schedule is through
    assert [line["rows"] for line in alone[0]["history"]] == [21, 21]
    for results in others:
        assert [result["first"] for result in results] == [True] + [False] * (len(results) - 1)
        for result in results:
            near(result, alone[0])
            assert result["lr"] == alone[0]["lr"]
            assert [line["rows"] for line in result["history"]] == [21, 21]
            errors = [line["error"] for line in result["history"]]
            assert errors == pytest.approx([line["error"] for line in alone[0]["history"]], rel=1e-9)


def steps(folder: Path) -> list[dict[str, Any]]:
    path = folder / "heard"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    own = {"result": str(folder / "result.json"), "heard": str(folder / "heard")}
    return {"samples": 100, **own, "accelerator": {"run_dir": str(folder / "run")}, **more}


def test_workers_that_join_and_die_leave_the_same_weights(tmp_path: Path) -> None:
    chosen = settings(tmp_path, sleep=0.4)
    with ForkedRun(tmp_path, WORKER, chosen, workers="1:2", start=1, max_restarts=10) as run:
        wait_for(run, lambda: len(steps(tmp_path)) >= 2)
        ask(run.run_dir, "resize", workers=2)
        wait_for(run, lambda: any(line["replicas"] == 2 for line in steps(tmp_path)))
        os.kill(steps(tmp_path)[0]["pid"], signal.SIGKILL)
        assert run.end(timeout_s=240) == 0, run.terminal()
    result = json.loads((tmp_path / "result.json").read_text())
    near(result, train({"samples": 100}), 1e-10)
    assert result["first"] and result["history"][-1]["rows"] == 21


def test_a_run_that_was_stopped_in_an_epoch_resumes_on_other_workers(tmp_path: Path) -> None:
    with ForkedRun(tmp_path, WORKER, settings(tmp_path, sleep=0.3), workers="1", start=1, max_restarts=5) as run:
        wait_for(run, lambda: len(steps(tmp_path)) >= 9)
        ask(run.run_dir, "stop")
        assert run.end(timeout_s=120) == 143, run.terminal()
    with ForkedRun(tmp_path, WORKER, settings(tmp_path), workers="3", start=3, max_restarts=5) as run:
        assert run.end(timeout_s=240) == 0, run.terminal()
    near(json.loads((tmp_path / "result.json").read_text()), train({"samples": 100}), 1e-10)


def test_save_state_in_the_loop_saves_the_run(tmp_path: Path) -> None:
    saved = {"samples": 100, "save_at": 3, "accelerator": {"run_dir": str(tmp_path / "run")}}
    results = run_processes(3, train, saved, timeout_s=300)
    near(results[0], train({"samples": 100}))
    steps = [event.step for event in read_events(tmp_path / "run" / "events.jsonl") if isinstance(event, Saved)]
    assert steps[0] == 4  # asked for in the third step, and saved by all workers after the next


@pytest.mark.parametrize(("accumulation", "by_hand", "steps"), [(2, 2, 6), (1, 2, 0), (4, 2, 3)])
def test_a_loop_that_accumulates_by_hand_is_told_where_it_goes_past_a_step(
    accumulation: int, by_hand: int, steps: int
) -> None:
    import torch
    from torch.utils.data import DataLoader

    from swell.accelerate import Accelerator

    accelerator: Any = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    model: Any = tiny.Regression()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    loader: Any = DataLoader(tiny.numbers(50), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    batches = (batch for _ in itertools.count() for batch in loader)
    with pytest.raises(LoopError, match=r"optimizer\.step\(\) was not called after the last batch of a step"):
        for _ in range(100):
            for _ in range(by_hand):
                accelerator.backward(model(**next(batches))["loss"])
            optimizer.step()
    assert accelerator.job.steps == steps
    accelerator.end_training()
