"""The demo's training run, written as any user would write it."""

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

BASE_BATCH = 8  # what the learning rate was tuned for
LARGE_BATCH = 128
LEARNING_RATE = 0.1
PASSES = 10
SWELL_PASSES = 16  # larger batches need more samples for as much progress, and far fewer steps


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a run chooses its batch, what its learning rate follows, and how long it goes on."""

    folder: str
    batch: int | Policy
    rule: str
    micro: int  # samples that go through the network at once
    passes: int


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a run."""

    accuracy: float
    steps: int
    samples: int


def ways() -> dict[str, Way]:
    """The three ways to choose a batch, by the names the table gives them."""
    growing = swell.Hysteresis(swell.NoiseScale(BASE_BATCH, max=LARGE_BATCH), change=0.25)
    half = BASE_BATCH // 2  # noise is seen in how the parts of a step differ, so every step shall have two or more
    return {
        "small batch": Way(folder="small", batch=BASE_BATCH, rule="constant", micro=BASE_BATCH, passes=PASSES),
        "large batch": Way(folder="large", batch=LARGE_BATCH, rule="constant", micro=LARGE_BATCH, passes=PASSES),
        "swell": Way(folder="swell", batch=growing, rule="adascale", micro=half, passes=SWELL_PASSES),
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
    passes: int | None = None,
    sinks: Sequence[Sink] = (),
    look: Callable[[swell.Job, Tensor], None] = lambda job, rows: None,
) -> Result:
    """Train one network and judge it; the same on one process and on a changing number of them.

    ``look`` is shown the rows of the data set before they are used, micro-batch by micro-batch.
    """
    torch.manual_seed(seed)
    train_set, test_set = load_digits()
    numbered = TensorDataset(*train_set.tensors, torch.arange(len(train_set)))
    # Every step is measured (statistics=1): this run is short, and its noise changes quickly.
    settings = {"batch": way.batch, "rule": way.rule, "micro": way.micro, "statistics": 1, "seed": seed}
    with swell.Job(run_dir, **settings, device="cpu", progress=False, sinks=sinks, save=Cadence(every_s=5.0)) as job:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        model, optimizer = job.wrap(model, optimizer)
        loader = job.loader(numbered, shuffle=True)
        for _ in job.epochs(way.passes if passes is None else passes):
            for images, labels, rows in loader:
                look(job, rows)
                loss = F.cross_entropy(model(images), labels)
                job.backward(loss)
                job.step()
        with torch.no_grad():
            for images, labels in job.evaluation(test_set, batch_size=128):
                job.metrics.accuracy("accuracy", model(images), labels)
        return Result(accuracy=job.metrics.results()["accuracy"], steps=job.steps, samples=job.samples)
