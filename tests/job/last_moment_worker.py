"""A worker whose run waits in its last step until another one is about to join."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch

import swell
from tests.job.scenario import Points, make_model, mean_loss

N, BATCH, EPOCHS = 20, 8, 2
STEPS = 6  # of which the last is short


def train(folder: str, kind: str) -> None:
    """Train, evaluate after each epoch, and write down what was found."""
    here = Path(folder)
    job = swell.Job(here / "job", batch=BATCH, rule="constant", device="cpu", progress=False, save=None)
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = job.loader(Points(N), shuffle=True)
    found: list[dict[str, float]] = []
    turns = {
        "count": lambda: job.epochs(EPOCHS),
        "epochs": lambda: job.until(epochs=EPOCHS),
        "steps": lambda: job.until(steps=STEPS),
    }
    for _ in turns[kind]():
        for x, y, _ in loader:
            job.backward(mean_loss(model, x, y))
            if job.steps == STEPS - 1 and job.replicas == 1:
                (here / "waits").touch()
                while not job.engine.peers.pending():
                    time.sleep(0.02)
            job.step()
        for x, y, _ in job.evaluation(Points(10)):
            job.metrics.mean("evaluated", float(mean_loss(model, x, y).detach()))
        found.append(job.metrics.results())
    result = {"steps": job.steps, "samples": job.samples, "found": found[-1:], "replicas": job.replicas}
    (here / f"result-{os.getpid()}.json").write_text(json.dumps(result))
    job.close()
