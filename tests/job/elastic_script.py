"""A training script for elastic runs: writes down every step that was committed, and the weights at the end."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

import swell
from tests.job.scenario import Points, make_model, mean_loss

folder, epochs, pause_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
job = swell.Job(folder / "run", batch=12, micro=3, rule="linear", base=6, seed=4)
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
job.wrap(model, optimizer)
loader = job.loader(Points(130), shuffle=True)
log = (folder / f"rows-{os.getpid()}.jsonl").open("a", buffering=1)
rows: list[list[int]] = []
for epoch in job.epochs(epochs):
    for x, y, index in loader:
        time.sleep(pause_s)
        before = job.steps
        rows.append(index.tolist())
        job.metrics.sum("seen", len(y))
        job.backward(mean_loss(model, x, y))
        if job.step():
            log.write(json.dumps({"step": before, "epoch": epoch, "rows": rows, "replicas": job.replicas}) + "\n")
            rows = []
        elif job.steps != before or len(rows) > 8:
            rows = []  # the step was given up; its samples come again
    seen = job.metrics.results()["seen"]
    if job.is_main:
        log.write(json.dumps({"epoch_end": epoch, "seen": seen}) + "\n")
if job.is_main:
    weights = [p.detach().flatten().tolist() for p in model.parameters()]
    (folder / "weights.json").write_text(json.dumps(weights))
job.close()
