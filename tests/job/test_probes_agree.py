"""Every way to measure gradient noise finds the same noise scale on the same weights, within its interval."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import swell
from swell.core.types import NoiseEstimate
from tests.job.scenario import Points, mean_loss
from tests.workers import run_workers

N, MICRO = 768, 4
Probe = tuple[int, dict[str, Any], bool]  # replicas, settings of the job, whether the model is sharded
EVERY_STEP: dict[str, Any] = {"every": 1, "split_every": 1, "window": 1e6}
PROBES: dict[str, Probe] = {
    "accumulation in one process": (1, {"batch": 4 * MICRO}, False),
    "two replicas": (2, {"batch": 2 * MICRO}, False),
    "two replicas with accumulation": (2, {"batch": 4 * MICRO}, False),
    "two sharded replicas": (2, {"batch": 2 * MICRO}, True),
    "two sharded replicas with accumulation": (2, {"batch": 4 * MICRO}, True),
    "steps split in two": (1, {"batch": 2 * MICRO, "micro": 2 * MICRO}, False),
    "consecutive steps": (1, {"batch": MICRO, "statistics": {"alone": "differences"}}, False),
}


class Clear(Points):
    """Points whose labels can be learnt, so that the signal is no smaller than the noise of a few samples."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.y = self.y + self.x.sum(-1)


def make() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).double()


def measure(collective: Any, settings: dict[str, Any], sharded: bool) -> NoiseEstimate:
    """What a job says that goes once through the data and leaves the weights alone."""
    settings = {"micro": MICRO, **settings}
    settings["statistics"] = swell.Statistics(**{**EVERY_STEP, **settings.get("statistics", {})})
    job = swell.Job(rule="constant", progress=False, **settings)
    model = make()
    if sharded:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (collective.size,)))
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0))
    loader = job.loader(Clear(N), shuffle=True)
    for _ in job.epochs(1):
        for x, y, _ in loader:
            job.backward(mean_loss(model, x, y))
            job.step()
    assert job.noise is not None
    return job.noise


def alone() -> NoiseEstimate:
    loader = torch.utils.data.DataLoader(Clear(N), batch_size=MICRO)
    return swell.noise_scale(make(), lambda model, batch: mean_loss(model, batch[0], batch[1]), loader).estimate


def exact() -> float:
    """The noise scale of the data set itself, from the gradient of every sample."""
    model, points = make(), Clear(N)
    gradients = []
    for index in range(N):
        loss = mean_loss(model, points.x[index : index + 1], points.y[index : index + 1])
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    stacked = torch.stack(gradients)
    noise = float((stacked - stacked.mean(0)).square().sum()) / (N - 1)
    return noise / (float(stacked.mean(0).square().sum()) - noise / N)


@pytest.mark.distributed
def test_all_probes_agree_on_the_same_weights() -> None:
    ways: dict[str, Callable[[], NoiseEstimate]] = {"swell.noise_scale": alone}
    for name, (replicas, settings, sharded) in PROBES.items():
        ways[name] = lambda replicas=replicas, rest=(settings, sharded): run_workers(replicas, measure, *rest)[0]
    found = {name: way() for name, way in ways.items()}
    true = exact()
    for name, estimate in found.items():
        low, high = estimate.interval
        assert 0 < low <= true <= high < math.inf, f"{name}: {estimate.interval} without {true}"
    assert max(e.interval[0] for e in found.values()) <= min(e.interval[1] for e in found.values())
