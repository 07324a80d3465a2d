"""A model that torch's DistributedDataParallel holds trains as the plain one does, whichever of the two is called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import swell
from tests.job.scenario import Points, make_model, mean_loss
from tests.workers import run_workers


class Branches(nn.Module):
    """Batch norm, whose buffers torch would hand round in the forward pass, and a part that only some steps use."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.main = nn.BatchNorm1d(6).double(), make_model()
        self.now_and_then = make_model(seed=5)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        there = self.calls % 2 if self.training else 0
        out = self.main(self.norm(x))
        return out + self.now_and_then(x) if there else out


def train(collective: Any, parallel: bool, model_name: str, options: dict[str, Any]) -> dict[str, Any]:
    model = Branches() if model_name == "branches" else make_model()
    called = DistributedDataParallel(model, **options) if parallel else model
    job = swell.Job(batch=16, base=8, micro=4)
    job.wrap(called, torch.optim.SGD(model.parameters(), lr=0.05))  # what it returns is not taken
    loader = job.loader(Points(61), shuffle=True)
    for _ in job.epochs(2):
        for x, y, _ in loader:
            job.backward(mean_loss(called, x, y))
            job.step()
    noise = job.noise
    assert noise is not None
    return {
        "state": [tensor.detach().clone() for tensor in model.state_dict().values()],
        "figures": [noise.total.signal, noise.total.noise, job.gain, job.progress],
    }


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("plain", {}),
        ("plain", {"static_graph": True}),
        ("plain", {"gradient_as_bucket_view": True}),
        ("branches", {}),
        ("branches", {"find_unused_parameters": True}),
    ],
    ids=str,
)
def test_a_data_parallel_model_measures_and_trains_as_the_plain_one(model: str, options: dict[str, Any]) -> None:
    plain = run_workers(2, train, False, model, {})
    parallel = run_workers(2, train, True, model, options)
    for one, other in zip(plain, parallel, strict=True):
        torch.testing.assert_close(other["state"], one["state"], rtol=1e-12, atol=1e-14)
        assert other["figures"] == pytest.approx(one["figures"], rel=1e-9)


def gradients(collective: Any, options: dict[str, Any]) -> list[bool]:
    """Whether replicas with other samples keep their own gradients, before and after the model was handed over."""
    model = make_model()
    net = DistributedDataParallel(model, **options)

    def agree() -> bool:
        model.zero_grad()
        rows = Points(8 + collective.rank)
        mean_loss(net, rows.x, rows.y).backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        sums = [row[0] for row in collective.gather_numbers([float(flat.sum())])]
        return sums[0] == sums[1]

    before = agree() if not options else True
    taken, _ = swell.Job(batch=8).wrap(net, torch.optim.SGD(model.parameters(), lr=0.1))
    assert taken is model
    return [before, agree(), agree()]


@pytest.mark.distributed
@pytest.mark.parametrize("options", [{}, {"static_graph": True}, {"find_unused_parameters": True}], ids=str)
def test_the_wrapper_exchanges_nothing_once_the_job_has_the_model(options: dict[str, Any]) -> None:
    assert run_workers(2, gradients, options) == [[True, False, False]] * 2
