"""A trace on real worker processes: uneven substeps, replicas with nothing to do, and no dummy sample."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import swell.compat.variable_batch_size as vbs
from tests.compat.variable_batch_size.loop import problem, train, train_alone
from tests.workers import run_workers

pytestmark = pytest.mark.distributed

TRACE = [32, 64, 96, 32, 32, 160, 64, 32]  # with 3 replicas: idle at the start, in a row, in the middle, at the end


class Counting(nn.Module):
    """Counts the samples that pass through it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.samples = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.samples += len(x)
        return self.net(x)


def replica(collective: Any) -> tuple[list[float], int, list[bool], list[float]]:
    net, data = problem()
    counting = Counting(net)
    sampler = vbs.CustomSampler(data, trace=TRACE, minibatch_size=32, at_end="hold")
    inner = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    updates = train(counting, data, sampler, vbs.LinearRuleOptimizer(inner, sampler, ref_batchsize=32), range(2))

    measured, data = problem()
    adascale = vbs.AdaScaleOptimizer(torch.optim.SGD(measured.parameters(), lr=0.01), sampler, ref_batchsize=32)
    train(measured, data, sampler, adascale, range(2))
    weights = torch.cat([p.detach().flatten() for p in net.parameters()]).tolist()
    return weights, counting.samples, updates, list(adascale.gain())


@pytest.mark.parametrize("replicas", [2, 3])
def test_replicas_that_have_nothing_contribute_nothing_and_the_gradient_is_that_of_one_process(replicas: int) -> None:
    """ETH E1, E5 and E12: idle replicas hung or counted dummies; gradients went through one CPU."""
    results = run_workers(replicas, replica)
    net, data = problem()
    sampler = vbs.CustomSampler(data, trace=TRACE, minibatch_size=32, at_end="hold")
    alone = copy.deepcopy(net)
    train_alone(alone, data, sampler, torch.optim.SGD(alone.parameters(), lr=0.01, momentum=0.9), range(2))
    expected = torch.cat([p.detach().flatten() for p in alone.parameters()]).tolist()
    steps = sum(len(sampler.get_epochtrace(epoch)) for epoch in range(2))
    for weights, _, updates, gains in results:
        assert weights == pytest.approx(expected, rel=1e-10, abs=1e-12)
        assert sum(updates) <= steps and gains == results[0][3]
    assert sum(samples for _, samples, *_ in results) == 2 * len(data)  # no sample twice, none beside them
    assert results[0][2].count(True) == steps  # rank 0 has a part in every step

    single = vbs.AdaScaleOptimizer(torch.optim.SGD(net.parameters(), lr=0.01), sampler, ref_batchsize=32)
    train(net, data, sampler, single, range(2))
    assert results[0][3] == pytest.approx(list(single.gain()), rel=1e-5)
