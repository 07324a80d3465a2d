"""Workers that join train on what the others train on: streams, shared rollouts, registered state; or are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from swell.core.events import EpochEnded
from swell.telemetry import read_events
from tests.supervisor.supervised import SupervisedRun

SCRIPT = Path(__file__).with_name("joining_script.py")
ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


def begin(folder: Path, kind: str) -> SupervisedRun:
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return SupervisedRun.of(folder, "--workers", "1:2", "--start", "1", str(SCRIPT), str(folder), kind)


def records(folder: Path) -> list[dict[str, Any]]:
    lines = [line for path in folder.glob("rows-*.jsonl") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines if line.endswith("}")]


@pytest.mark.parametrize("kind", ["stream", "rollouts"])
def test_a_worker_that_joins_and_one_that_is_killed_leave_every_sample_once(tmp_path: Path, kind: str) -> None:
    with begin(tmp_path, kind) as run:
        run.wait_for(lambda: len(records(tmp_path)) >= 2, timeout_s=120)
        run.ask("resize", workers=2)
        run.wait_for(lambda: sum(r["replicas"] == 2 for r in records(tmp_path)) >= 4, timeout_s=120)
        run.ask("chaos", rank=0)
        assert run.end(timeout_s=240) == 0, run.terminal()
    found = records(tmp_path)
    for epoch in range(2):
        rows = [row for record in found if record["epoch"] == epoch for row in record["rows"]]
        # The killed worker may have committed a step with the others and not have written it down.
        assert len(rows) == len(set(rows)) and len(rows) >= 240 - 12, run.terminal()
    drawn = [record["drawn"] for record in found]
    assert len(set(drawn)) == len(drawn), "no two replicas, and no two steps, draw the same"
    by_step: dict[int, set[str]] = {}
    for record in found:
        by_step.setdefault(record["step"], set()).add(json.dumps(record["total"]))
    assert all(len(totals) == 1 for totals in by_step.values()), "every replica has the same data and the same buffer"
    ends = [event for event in read_events(run.run_dir / "events.jsonl") if isinstance(event, EpochEnded)]
    assert [(end.samples, end.complete) for end in ends] == [(240, True)] * 2


def test_a_worker_that_would_train_on_something_else_is_refused_and_the_run_goes_on(tmp_path: Path) -> None:
    with begin(tmp_path, "apart") as run:
        run.wait_for(lambda: len(records(tmp_path)) >= 2, timeout_s=120)
        run.ask("resize", workers=2)
        assert run.end(timeout_s=240) == 0, run.terminal()
        assert "the content of the data set" in run.terminal()
    found = records(tmp_path)
    for epoch in range(2):
        assert sorted(row for r in found if r["epoch"] == epoch for row in r["rows"]) == list(range(240))
