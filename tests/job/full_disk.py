"""Fills the disk under a run, for real: full_disk.py FOLDER, where FOLDER is on a small file system of its own.

Checks on the way; exits with 0 where all of it holds.
"""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

from swell.cli import main as swell_main
from tests.supervisor.supervised import SupervisedRun, pids

SCRIPT = """
import sys, time
import torch
from torch.utils.data import TensorDataset
import swell
import swell.job.saving
from swell.checkpoint.cadence import Cadence

swell.job.saving._AGAIN_S = 0.5
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 3), torch.randn(64, 1))
model = torch.nn.Linear(3, 1)
with swell.Job(sys.argv[1], batch=8, device="cpu", save=Cadence(every_s=0.3)) as job:
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = job.loader(data, shuffle=True)
    for epoch in job.epochs(100_000):
        for x, y in loader:
            time.sleep(0.01)
            job.backward(((model(x) - y) ** 2).mean())
            job.step()
            print("step", job.steps, "." * 500)
"""


def steps_saved(folder: Path) -> list[int]:
    found = [re.search(r"step(\d+)$", path.name) for path in (folder / "run" / "checkpoints").glob("[0-9]*")]
    return sorted(int(match[1]) for match in found if match)


def fill(folder: Path) -> None:
    with (folder / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


def progress(run: SupervisedRun) -> int:
    return max((worker["steps"] for worker in run.status()["workers"]), default=0)


def main(folder: Path) -> int:
    terminal = Path(os.environ["TERMINAL"])
    (folder / "terminal").symlink_to(terminal)
    (terminal.parent / "train.py").write_text(SCRIPT)
    line = ("--workers", "2", "--show", "none", str(terminal.parent / "train.py"), str(folder / "run"))
    with SupervisedRun.of(folder, *line) as run:
        run.wait_for(lambda: len(steps_saved(folder)) >= 2)
        fill(folder)
        run.wait_for(lambda: len(run.status()["troubles"]) == 2)  # the disk, and the save that failed
        before, kept = progress(run), steps_saved(folder)
        assert kept, "the last good checkpoints stay"
        assert swell_main(["status", str(run.run_dir)]) == 0
        victim = pids(run.status()["workers"])[2]
        os.kill(victim, 9)
        run.wait_for(lambda: run.status()["members"] == [1, 3] and run.status()["state"] == "training")
        run.wait_for(lambda: progress(run) > before + 50)
        assert steps_saved(folder)[-1] == kept[-1]
        os.unlink(folder / "ballast")
        run.wait_for(lambda: not run.status()["troubles"] and steps_saved(folder)[-1] > kept[-1])
        fill(folder)
        run.wait_for(lambda: len(run.status()["troubles"]) == 2)
        last = steps_saved(folder)[-1]
        run.ask("stop")  # there is no room to save; it is made before the deadline
        time.sleep(1.0)
        os.unlink(folder / "ballast")
        assert run.end() == 143, run.terminal()
    assert steps_saved(folder)[-1] > last
    assert "is full: training goes on without logs and checkpoints" in terminal.read_text()
    assert "no space is left on the disk" in terminal.read_text()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
