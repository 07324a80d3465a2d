"""A training script that saves after every step: saving_script.py FOLDER STEPS."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

import swell
from tests.job.scenario import Points, make_model, mean_loss

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
with swell.Job(folder / "run", batch=10, save=swell.Cadence(every_steps=1), keep=1000) as job:
    model = make_model()
    model, optimizer = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = job.loader(Points(100), shuffle=True)
    for _ in job.epochs(-(-steps // 10)):
        for x, y, _ in loader:
            time.sleep(0.05)
            job.backward(mean_loss(model, x, y))
            job.step()
