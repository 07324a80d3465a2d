"""Workers that torchrun has started again meet one another, and not the addresses that dead ones left in its store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from swell.runtime.world import open_world
from tests.workers import run_processes

pytestmark = pytest.mark.distributed
ROOT = Path(__file__).parents[2]

SCRIPT = """
import os, signal, sys
import torch
import swell
from torch.utils.data import TensorDataset

first_life, rank = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0", os.environ["RANK"]
job = swell.Job(sys.argv[1], batch=8, save=2, progress=False, device="cpu")
model = torch.nn.Linear(4, 1)
wrapped, _ = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = job.loader(TensorDataset(torch.ones(64, 4), torch.ones(64, 1)))
for epoch in job.epochs(2):
    for x, y in loader:
        job.backward((wrapped(x) - y).square().mean())
        job.step()
        if first_life and rank == "1" and job.steps == 5:
            os.kill(os.getpid(), signal.SIGKILL)
os.write(1, f"rank {rank} of the second life has {job.samples} samples\\n".encode())  # at once: both print
"""


def live_twice() -> float:
    """The sum over ranks that a second life gets, after a first one died with its addresses in the store."""
    child = os.fork()
    if child == 0:
        open_world("cpu").collective.barrier()
        os._exit(0)  # as a killed worker: nothing is taken back
    os.waitpid(child, 0)
    os.environ["TORCHELASTIC_RESTART_COUNT"] = "1"
    world = open_world("cpu", timeout_s=20)
    total = sum(row[0] for row in world.collective.gather_numbers([world.collective.rank + 1.0]))
    world.close()
    return total


def test_a_second_life_does_not_meet_the_first() -> None:
    assert run_processes(2, live_twice) == [3.0, 3.0]


@pytest.mark.slow
def test_torchrun_starts_a_run_again_whose_worker_was_killed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*line, str(script), str(tmp_path / "run")], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("of the second life has 128 samples") == 2
