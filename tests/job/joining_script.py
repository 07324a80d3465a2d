"""An elastic script whose data it makes or streams itself: joining_script.py FOLDER KIND, with KIND of

stream (a shuffle buffer whose state leaves its content out), rollouts (shared, with a large registered buffer), or
apart (each worker makes its own data). Writes down every committed row, every draw and what a newcomer received.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import TensorDataset

import swell
from tests.data.buffered import Buffered
from tests.job.scenario import make_model, mean_loss

folder, kind = Path(sys.argv[1]), sys.argv[2]
N, LARGE = 240, 1_500_000


class Replay:
    """What the run has seen so far: grows only by what was shared."""

    def __init__(self) -> None:
        self.rows, self.count = torch.zeros(LARGE, dtype=torch.float64), 0

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows, self.count = state["rows"].clone(), state["count"]


class Rows(Buffered):
    """The numbers of a buffered stream with features."""

    def __iter__(self) -> Iterator[Any]:
        for index in super().__iter__():
            generator = torch.Generator().manual_seed(index)
            row = torch.randn(7, generator=generator, dtype=torch.float64)
            yield row[:6], row[6], index


torch.manual_seed(1)
job = swell.Job(folder / "run", batch=12, micro=2, rule="constant", device="cpu", progress=False)
model, replay = make_model(), Replay()
job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
job.register("replay", replay)
if kind == "apart":
    torch.manual_seed(os.getpid())
data = TensorDataset(torch.randn(N, 6).double(), torch.randn(N).double(), torch.arange(N))
loader = job.loader(Rows(N, buffer=31)) if kind == "stream" else job.loader(data, shuffle=True)
log = (folder / f"rows-{os.getpid()}.jsonl").open("a", buffering=1)
for epoch in job.epochs(2):
    if kind == "rollouts":
        fresh = job.share(lambda: torch.randn(N, 6).double())
        data.tensors[0].copy_(fresh)
        replay.rows[epoch * N : (epoch + 1) * N] = fresh[:, 0]  # a worker that joins does it again
        replay.count = (epoch + 1) * N
    rows: set[int] = set()  # of this step; one that is given up is done again with all of them
    for x, y, index in loader:
        time.sleep(0.1)
        before, drawn = job.steps, float(torch.rand(()))
        rows |= set(index.tolist())
        job.backward(mean_loss(model, x, y))
        moved = job.step()
        if moved:
            record = {"step": before, "epoch": epoch, "rows": sorted(rows), "replicas": job.replicas, "drawn": drawn}
            total = [replay.count, float(replay.rows.sum()), float(data.tensors[0].sum())]
            log.write(json.dumps({**record, "total": total}) + "\n")
            rows = set()
job.close()
