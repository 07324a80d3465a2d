"""A small training run for `make soak`: swell chaos strikes its workers until it is stopped."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import swell
from swell.checkpoint.cadence import Cadence

SAMPLES, EPOCHS, STEP_S = 2000, 1_000_000, 0.02


def main() -> None:
    """Train a small network on random numbers, with a short sleep in every step."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(SAMPLES, 16), torch.randint(0, 4, (SAMPLES,)))
    model = nn.Sequential(nn.Linear(16, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    policy = swell.Schedule([(0, 32), (1, 96), (2, 48)], unit="epochs", base=32)
    job = swell.Job(Path(__file__).parents[1] / "runs" / "soak" / "job", batch=policy, device="cpu", save=save())
    job.wrap(model, optimizer)
    loader = job.loader(data, shuffle=True)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            time.sleep(STEP_S)
            loss = nn.functional.cross_entropy(model(x), y)
            job.metrics.mean("loss", loss, weight=len(y))
            job.backward(loss)
            job.step()
        job.metrics.results()
    job.close()


def save() -> Cadence:
    """Save often, so that losing all workers at once costs little."""
    return Cadence(every_s=5.0)


if __name__ == "__main__":
    main()
