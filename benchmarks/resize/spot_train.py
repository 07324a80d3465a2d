"""The script of spot.py: a small convolutional network on MNIST, whose batch follows the number of workers.

Without SWELL_DATA it trains on the digits that come with swell, for more passes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import swell
from swell.demo.digits import load_digits

BASE = 64


def load() -> tuple[TensorDataset, TensorDataset, float]:
    """Images to train on and to judge by, and how many passes to make."""
    if "SWELL_DATA" not in os.environ:
        return *load_digits(), 60.0
    with np.load(Path(os.environ["SWELL_DATA"]) / "images" / "mnist.npz") as file:
        parts = [
            TensorDataset(
                torch.from_numpy((file[f"x_{part}"] / 255).astype(np.float32)),
                torch.from_numpy(file[f"y_{part}"].astype(np.int64)),
            )
            for part in ("train", "test")
        ]
    return parts[0], parts[1], 1.5


def main() -> None:
    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    train_set, test_set, passes = load()
    flat = train_set.tensors[0].shape[-1] // 4
    model = nn.Sequential(
        nn.Unflatten(1, (1, -1)),
        *(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * flat * flat, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    total = passes * len(train_set) / BASE
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))

    def batch(seen: swell.Observation) -> int:
        return BASE * seen.replicas

    with swell.Job(folder, batch=batch, base=BASE, rule="adascale", seed=seed, device="cpu", progress=False) as job:
        job.wrap(model, optimizer, scheduler=falling)
        loader = job.loader(train_set, shuffle=True)
        for _ in job.until(epochs=passes):  # as much progress as this many passes with the base batch
            for images, labels in loader:
                job.backward(F.cross_entropy(model(images), labels))
                job.step()
        with torch.no_grad():
            for images, labels in job.evaluation(test_set, batch_size=500):
                job.metrics.accuracy("accuracy", model(images), labels)
        accuracy = job.metrics.results()["accuracy"]
    (folder / "result.json").write_text(json.dumps({"accuracy": accuracy, "progress": job.progress}))


if __name__ == "__main__":
    main()
