"""The scripts that ``swell launch slurm`` prints, on a real Slurm: growth, a lost node, preemption and requeueing."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machines.cluster import TRAINING, Cluster, Loopback, environment, train_alone
from tests.machines.slurm import Slurm, why_no_slurm

EPOCHS = "150"

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm() or "there is a Slurm"),
]


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    folder = tmp_path / "slurm"
    folder.mkdir()
    with Slurm(folder, 3) as cluster:
        yield cluster


def printed(*arguments: str) -> str:
    line = [sys.executable, "-m", "swell", "launch", *arguments]
    return subprocess.run(line, env=environment(), check=True, capture_output=True, text=True).stdout


def paths(folder: Path) -> dict[str, str]:
    """An environment with ``swell`` on its path; all nodes are this machine, whose name stands for its loopback."""
    (folder / "bin").mkdir()
    for name, line in {"swell": f'exec {sys.executable} -m swell "$@"', "hostname": "echo 127.0.0.1"}.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / "bin" / name).chmod(0o755)
    return {**environment(), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


def test_a_run_grows_survives_a_lost_node_and_comes_back_after_preemption(slurm: Slurm, tmp_path: Path) -> None:
    environ, run = paths(tmp_path), Cluster(tmp_path, Loopback(), ())  # Slurm starts all; this one only looks
    script = (str(TRAINING), str(tmp_path), EPOCHS, "0.1")
    common = ("--slots", "1", "--grace", "40", "--time", "30")
    first = printed(*common, "--nodes", "2", "--workers", "1:3", "--run-dir", str(run.run_dir), "slurm", *script)
    job = slurm.submit(first, "--partition", "low", environ=environ)
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: print(slurm.said()))
        run.wait_for_world(2)
        more = printed(*common, "--nodes", "1", "--join", str(run.run_dir), "slurm")
        joined = slurm.submit(more, "--partition", "low", environ=environ)
        run.wait_for_world(3)
        run.wait_for_steps(2, replicas=3)

        lost = slurm.nodes_of(job)[1]  # not the one with the head
        slurm.lose_node(lost)
        run.wait_for_world(2)
        slurm.wait_for(lambda: slurm.state_of_nodes()[lost].startswith("DOWN"))
        run.wait_for_steps(2, replicas=2)
        assert (slurm.state(job), slurm.state(joined)) == ("RUNNING", "RUNNING"), "nobody else went with it"
        slurm.start_node(lost)
        slurm.wait_for(lambda: slurm.state_of_nodes()[lost].startswith("IDLE"))

        before = run.steps()[-1]["step"]
        urgent = slurm.submit("#!/bin/bash\nsleep 1\n", "--partition", "high", "--nodes", "3", environ=environ)
        slurm.wait_for(lambda: slurm.state(urgent) in ("RUNNING", "COMPLETED"))
        assert slurm.restarts(job) == 1 and slurm.state(joined) == "COMPLETED"
        slurm.wait_for(lambda: slurm.state(job) == "RUNNING")
        run.wait_for_world(2)
        run.wait_for_steps(2, replicas=2)
        (tmp_path / "hurry").touch()
        slurm.wait_for(lambda: slurm.state(job) == "COMPLETED", timeout_s=120)
        report = run.report()
        assert (report.lost, report.repeated, report.rewound) == (0, 0, 0), report
        assert report.samples == 130 * int(EPOCHS) and run.steps()[-1]["step"] > before
        alone = train_alone(tmp_path / "alone", EPOCHS, "0")
        assert run.weights() == pytest.approx(alone, rel=1e-6)
        stack.pop_all()
    assert json.loads((tmp_path / "weights.json").read_text())


def test_a_run_that_nears_its_time_limit_saves_and_goes_on_in_the_requeued_job(slurm: Slurm, tmp_path: Path) -> None:
    environ, run = paths(tmp_path), Cluster(tmp_path, Loopback(), ())
    options = ("--slots", "1", "--nodes", "2", "--grace", "30", "--time", "1", "--run-dir", str(run.run_dir))
    job = slurm.submit(printed(*options, "slurm", str(TRAINING), str(tmp_path), EPOCHS, "0.1"), environ=environ)
    slurm.wait_for(lambda: slurm.restarts(job) == 1, timeout_s=120)  # Slurm gave the signal up to a minute too early
    saved = max(each["step"] for each in run.steps())
    slurm.wait_for(lambda: max(each["step"] for each in run.steps()) > saved + 2, timeout_s=120)
    report = run.report()
    assert (report.lost, report.repeated, report.rewound) == (0, 0, 0), report
