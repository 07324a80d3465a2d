"""``ray job submit``: the command runs in a copy of the user's folder, on the cluster."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ray.ray_cluster import RayNodes

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("aiohttp") is None, reason="ray job submit needs ray[default]"),
]

SCRIPT = """
import torch, swell
from points import points

job = swell.Job(batch=8, micro=2, rule="linear", base=8)
model = torch.nn.Linear(2, 1)
job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
loader = job.loader(points)
for epoch in job.epochs(2):
    for x, y in loader:
        job.backward(torch.nn.functional.mse_loss(model(x), y))
        job.step()
print("trained on", job.replicas, "workers")
job.close()
"""
MODULE = "import torch\npoints = torch.utils.data.TensorDataset(torch.ones(64, 2), torch.ones(64, 1))\n"


@pytest.fixture
def nodes() -> Iterator[RayNodes]:
    # One node: several on this machine would share, and delete, one copy of the user's folder.
    cluster = RayNodes(num_cpus=2, include_dashboard=True, dashboard_port=0)
    yield cluster
    cluster.close()


def submit(nodes: RayNodes, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    line = [str(Path(sys.executable).with_name("ray")), "job", "submit", "--address", f"http://{nodes.dashboard}"]
    line += ["--working-dir", str(folder), "--", sys.executable, "-m", "swell", "run", "--engine", "ray", *command]
    until = time.monotonic() + 240.0
    while time.monotonic() < until:
        done = subprocess.run(line, capture_output=True, text=True, timeout=300)
        if "No available agent to submit job" not in done.stderr:  # Ray's own answer while it starts
            return done
        time.sleep(2.0)
    raise TimeoutError("Ray had no agent to submit a job to for four minutes")


def test_a_run_is_submitted_as_a_job_of_ray(tmp_path: Path, nodes: RayNodes) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "points.py").write_text(MODULE)
    run_dir = tmp_path / "run"
    done = submit(nodes, folder, "--workers", "2", "--run-dir", str(run_dir), "train.py")
    shutil.rmtree(folder)
    assert done.returncode == 0 and "trained on 2 workers" in done.stdout, done.stdout + done.stderr
    assert (run_dir / "events.jsonl").exists()
