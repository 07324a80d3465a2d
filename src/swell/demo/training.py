"""The demo's training run, written like any user's script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import swell
from swell.checkpoint.cadence import Cadence
from swell.core.protocols import Policy, Sink
from swell.demo.digits import load_digits

BASE_BATCH = 8  # the learning rate was tuned for it
LARGE_BATCH = 128
LEARNING_RATE = 0.1
EPOCHS = 10
SWELL_EPOCHS = 16  # larger batches need more samples for the same progress, but far fewer steps


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to train: batch size, learning-rate rule, micro-batch and number of epochs."""

    folder: str
    batch: int | Policy
    rule: str
    micro: int  # samples per forward pass
    epochs: int


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a run."""

    accuracy: float
    steps: int
    samples: int


def ways() -> dict[str, Way]:
    """The three ways to choose a batch, by their names in the table."""
    growing = swell.Hysteresis(swell.NoiseScale(BASE_BATCH, max=LARGE_BATCH), change=0.25)
    half = BASE_BATCH // 2  # noise is measured between the parts of a step, so every step needs at least two
    return {
        "small batch": Way(folder="small", batch=BASE_BATCH, rule="constant", micro=BASE_BATCH, epochs=EPOCHS),
        "large batch": Way(folder="large", batch=LARGE_BATCH, rule="constant", micro=LARGE_BATCH, epochs=EPOCHS),
        "swell": Way(folder="swell", batch=growing, rule="adascale", micro=half, epochs=SWELL_EPOCHS),
    }


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


def train(
    run_dir: Path,
    way: Way,
    *,
    seed: int,
    epochs: int | None = None,
    sinks: Sequence[Sink] = (),
    record: Callable[[swell.Job, Tensor], None] = lambda job, rows: None,
) -> Result:
    """Train one network and test it; the same on one process and on a changing number of them.

    ``record`` is called for each micro-batch before its use, with its rows of the data set.
    """
    torch.manual_seed(seed)
    train_set, test_set = load_digits()
    indexed_set = TensorDataset(*train_set.tensors, torch.arange(len(train_set)))
    # Every step is measured (statistics=1), because this run is short and its noise changes quickly.
    settings = {"batch": way.batch, "rule": way.rule, "micro": way.micro, "statistics": 1, "seed": seed}
    with swell.Job(run_dir, **settings, device="cpu", progress=False, sinks=sinks, save=Cadence(every_s=5.0)) as job:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        model, optimizer = job.wrap(model, optimizer)
        loader = job.loader(indexed_set, shuffle=True)
        for _ in job.epochs(way.epochs if epochs is None else epochs):
            for images, labels, rows in loader:
                record(job, rows)
                loss = F.cross_entropy(model(images), labels)
                job.backward(loss)
                job.step()
        with torch.no_grad():
            for images, labels in job.evaluation(test_set, batch_size=128):
                job.metrics.accuracy("accuracy", model(images), labels)
        return Result(accuracy=job.metrics.results()["accuracy"], steps=job.steps, samples=job.samples)
