"""The buffers that replicas average are those that the model has now, each of them once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import swell
from swell.job.model_buffers import ModelBuffers
from swell.runtime.collective import Alone
from tests.job.scenario import Points
from tests.workers import run_workers


def test_buffers_are_the_models_own_and_come_once() -> None:
    shared = nn.BatchNorm1d(3)
    model, world = nn.Sequential(nn.BatchNorm1d(2), shared, nn.ModuleList([shared])), Alone()
    shared.register_buffer("again", shared.running_mean)
    buffers = ModelBuffers(model)

    def check() -> None:
        own = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        found = buffers.find(world)
        assert len(found) == len(own) and all(a is b for a, b in zip(found, own, strict=True))

    check()
    model[0].running_mean = torch.ones(2)  # another tensor in its place
    check()
    model[0].register_buffer("more", torch.ones(1))
    model[0].register_buffer("none", None)
    check()
    model.append(nn.BatchNorm1d(1))
    buffers.look_again()
    check()
    model.append(nn.BatchNorm1d(1))
    world = Alone()
    check()


def floating(model: nn.Module) -> list[list[float]]:
    return [buffer.flatten().tolist() for buffer in model.buffers() if buffer.is_floating_point()]


def grows(collective: Any) -> list[list[list[float]]]:
    """Batch norm is added between two passes over the data, and with a group of parameters within the second one."""
    job = swell.Job(batch=8, rule="constant", progress=False)
    model = nn.Sequential(nn.Linear(6, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    job.wrap(model, optimizer)
    loader, seen = job.loader(Points(32)), []
    for epoch in job.epochs(2):
        if epoch == 1:
            model.append(nn.BatchNorm1d(3, affine=False).double())
        for x, y, _ in loader:
            job.backward(((model(x).sum(1) - y) ** 2).mean())
            job.step()
            seen.append(floating(model))
            if job.steps == 6:
                model.append(late := nn.BatchNorm1d(3).double())
                optimizer.add_param_group({"params": late.parameters()})
    job.close()
    return seen


@pytest.mark.distributed
def test_batch_norm_that_is_added_on_the_way_is_averaged_too() -> None:
    first, *others = run_workers(2, grows)
    assert [len(buffers) for buffers in first] == [0, 0, 0, 0, 2, 2, 4, 4]
    for other in others:
        assert other == first
