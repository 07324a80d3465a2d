"""A training script for runs on several machines: notes when each step was committed, and the weights at the end.

training.py FOLDER EPOCHS PAUSE: a micro-batch takes PAUSE seconds until the file FOLDER/hurry exists.
"""

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
optimizer = torch.optim.SGD(model.parameters(), lr=0.003, momentum=0.9)
job.wrap(model, optimizer)
loader = job.loader(Points(130), shuffle=True)
name = f"{os.environ.get('SWELL_MEMBER', '0')}-{os.getpid()}"
log = (folder / f"steps-{name}.jsonl").open("a", buffering=1)
for epoch in job.epochs(epochs):
    for x, y, _ in loader:
        if not (folder / "hurry").exists():
            time.sleep(pause_s)
        before = job.steps
        job.metrics.sum("seen", len(y))
        job.backward(mean_loss(model, x, y))
        if job.step():
            facts = {"step": before, "time": time.time(), "replicas": job.replicas, "pid": os.getpid()}
            log.write(json.dumps(facts) + "\n")
    seen = job.metrics.results()["seen"]
    if job.is_main:
        log.write(json.dumps({"epoch": epoch, "seen": seen}) + "\n")
if job.is_main:
    weights = [value for p in model.parameters() for value in p.detach().flatten().tolist()]
    (folder / "weights.json").write_text(json.dumps(weights))
job.close()
