"""A training script in which one worker gets stuck, once, at its sixth step: stuck_script.py FOLDER HOW EPOCHS.

HOW is sleep (in a system call), spin (in Python), exit (``sys.exit(0)``), break (out of the loop) or never.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

import swell
from swell.checkpoint.cadence import Cadence

folder, how, epochs = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
SAMPLES, BATCH = 64, 8


def due() -> bool:
    """Whether this worker has to get stuck now."""
    if how == "never" or job.rank != 1 or job.steps < 5:
        return False
    try:
        os.close(os.open(folder / "stuck", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


torch.manual_seed(0)
data = TensorDataset(torch.randn(SAMPLES, 3), torch.randn(SAMPLES, 1))
model = torch.nn.Linear(3, 1)
with swell.Job(folder / "run", batch=BATCH, device="cpu", progress=False, save=Cadence(every_s=3600)) as job:
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = job.loader(data, shuffle=True)
    for _ in job.epochs(epochs):
        stop = False
        for x, y in loader:
            time.sleep(0.01)
            if due():
                if how == "sleep":
                    time.sleep(1e6)
                while how == "spin":
                    pass
                if how == "exit":
                    sys.exit(0)
                stop = how == "break"
            if stop:
                break
            job.backward(((model(x) - y) ** 2).mean())
            job.step()
            if job.is_main:
                (folder / "steps").write_text(str(job.steps))
        if stop:
            break
