"""The demo's training run, written as any user would write it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import swell
from swell.core.protocols import Policy, Sink
from swell.demo.digits import load_digits

BASE_BATCH = 8  # what the learning rate was tuned for
LEARNING_RATE = 0.1
EPOCHS = 10


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a run."""

    accuracy: float
    steps: int
    samples: int


def network() -> nn.Module:
    """A small convolutional network for images of 8 × 8."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def train(run_dir: Path, *, batch: int | Policy, rule: str, micro: int, seed: int, sink: Sink) -> Result:
    """Train one network and judge it: ``EPOCHS`` passes, or with a rule until as much progress is made as in them."""
    torch.manual_seed(seed)
    train_set, test_set = load_digits()
    # Every step is measured (statistics=1): this run is short, and its noise changes quickly.
    settings = {"batch": batch, "rule": rule, "micro": micro, "statistics": 1, "seed": seed}
    with swell.Job(run_dir, **settings, progress=False, sinks=[sink]) as job:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        model, optimizer = job.wrap(model, optimizer)
        loader = job.loader(train_set, shuffle=True)
        for _ in job.epochs(EPOCHS) if rule == "constant" else job.until(epochs=EPOCHS):
            for images, labels in loader:
                loss = F.cross_entropy(model(images), labels)
                job.backward(loss)
                job.step()
        with torch.no_grad():
            for images, labels in job.evaluation(test_set, batch_size=128):
                job.metrics.accuracy("accuracy", model(images), labels)
        return Result(accuracy=job.metrics.results()["accuracy"], steps=job.steps, samples=job.samples)
