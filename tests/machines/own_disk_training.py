"""A training script for machines with disks of their own: its run folder is the one that swell gives it.

own_disk_training.py NOTES EPOCHS PAUSE: a micro-batch takes PAUSE seconds until NOTES/hurry exists; NOTES is where
the test looks, and no part of the run.
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

notes, epochs, pause_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
job = swell.Job(batch=12, micro=3, rule="linear", base=6, seed=4, save=swell.Cadence(every_steps=5))
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.003, momentum=0.9)
job.wrap(model, optimizer)
loader = job.loader(Points(130), shuffle=True)
log = (notes / f"steps-{os.environ.get('SWELL_MEMBER', '0')}-{os.getpid()}.jsonl").open("a", buffering=1)
for _ in job.epochs(epochs):
    for x, y, _ in loader:
        if not (notes / "hurry").exists():
            time.sleep(pause_s)
        before = job.steps
        job.backward(mean_loss(model, x, y))
        if job.step():
            facts = {"step": before, "time": time.time(), "replicas": job.replicas, "pid": os.getpid()}
            log.write(json.dumps({**facts, "folder": str(job.run_dir)}) + "\n")
if job.is_main:
    weights = [value for p in model.parameters() for value in p.detach().flatten().tolist()]
    (notes / "weights.json").write_text(json.dumps(weights))
job.close()
