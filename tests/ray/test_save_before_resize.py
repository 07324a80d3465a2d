"""Inside Ray Train's own trainer: the job saves before Ray restarts the workers, so no step is done again."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swell.core.events import Stepped
from swell.telemetry.chaos_report import report_chaos
from swell.telemetry.log import read_events
from tests.machines.cluster import train_alone
from tests.ray.ray_cluster import RayNodes

EPOCHS = "40"
SCRIPT = Path(__file__).with_name("torch_trainer.py")

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


@pytest.fixture
def nodes() -> Iterator[RayNodes]:
    cluster = RayNodes()
    cluster.keep(1)
    yield cluster
    cluster.close()


def steps(folder: Path, *, replicas: int) -> int:
    log = folder / "run" / "events.jsonl"
    events = read_events(log) if log.exists() else ()
    return sum(isinstance(event, Stepped) and event.replicas == replicas for event in events)


def test_no_step_is_done_again_when_ray_train_grows(tmp_path: Path, nodes: RayNodes) -> None:
    line = [sys.executable, str(SCRIPT), str(tmp_path), nodes.address, EPOCHS]
    with (tmp_path / "driver.out").open("w") as output:
        driver = subprocess.Popen(line, stdout=output, stderr=subprocess.STDOUT, env=os.environ)
    try:
        deadline = time.monotonic() + 200
        while not steps(tmp_path, replicas=1) and driver.poll() is None and time.monotonic() < deadline:
            time.sleep(0.5)
        nodes.add()
        while not steps(tmp_path, replicas=2) and driver.poll() is None and time.monotonic() < deadline:
            time.sleep(0.5)
        (tmp_path / "hurry").touch()
        said = (tmp_path / "driver.out").read_text
        assert driver.wait(200) == 0, said()
    finally:
        driver.kill()
        driver.wait()
    assert steps(tmp_path, replicas=1) and steps(tmp_path, replicas=2), said()
    report = report_chaos(read_events(tmp_path / "run" / "events.jsonl"))
    assert (report.lost, report.repeated, report.rewound) == (0, 0, 0), report
    alone = train_alone(tmp_path / "alone", EPOCHS, "0")
    found = json.loads((tmp_path / "weights.json").read_text())
    assert math.dist(alone, found) / math.hypot(*alone) < 1e-6
