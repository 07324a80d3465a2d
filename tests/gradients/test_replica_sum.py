"""One gradient on all replicas, from parts of which each replica may lack some."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from swell.gradients.gradient_sum import GradientSum
from swell.gradients.replica_sum import sum_over_replicas
from swell.runtime.collective import Alone
from tests.workers import run_workers

ROWS = [[0, 2], [2, 2], []]  # of the embedding, that each replica uses in turn


def model() -> dict[str, nn.Parameter]:
    torch.manual_seed(0)
    parameters = {name: nn.Parameter(torch.randn(3, 2, dtype=torch.float64)) for name in ("all", "some", "none")}
    return parameters | {"sparse": nn.Parameter(torch.randn(4, 2, dtype=torch.float64))}


def loss(parameters: dict[str, nn.Parameter], rank: int) -> Tensor:
    """All replicas use one parameter, rank 1 another, none the third; rows of the last differ. Gradients are whole."""
    total = (rank + 1) * parameters["all"].sum()
    if rank == 1:
        total = total + parameters["some"].sum()
    if ROWS[rank]:
        total = total + nn.functional.embedding(torch.tensor(ROWS[rank]), parameters["sparse"], sparse=True).sum()
    return total


def gradients(collective: Any, *, idle: int = -1) -> tuple[dict[str, Any], list[float]]:
    parameters = model()
    total = GradientSum(torch.optim.SGD(list(parameters.values()), lr=0.1))
    if collective.rank != idle:
        loss(parameters, collective.rank).backward()
        total.take(multiplier=1.0, measure=False, preconditioned=False)
    figures = sum_over_replicas(total, collective, torch.tensor([1.0, collective.rank]))
    values = {
        name: None if p.grad is None else (p.grad.is_sparse, p.grad.to_dense().tolist())
        for name, p in parameters.items()
    }
    return values, figures.tolist()


def expected(replicas: int, *, idle: int = -1) -> dict[str, Any]:
    parameters = model()
    for rank in range(replicas):
        if rank != idle:
            loss(parameters, rank).backward()
    return {
        name: None if p.grad is None else (p.grad.is_sparse, p.grad.to_dense().tolist())
        for name, p in parameters.items()
    }


def test_alone_the_gradient_is_the_sum_so_far() -> None:
    assert gradients(Alone()) == (expected(1), [1, 0])


def with_and_without_an_idle_replica(collective: Any) -> list[Any]:
    return [gradients(collective), gradients(collective, idle=0)]


@pytest.mark.distributed
@pytest.mark.parametrize("replicas", [2, 3])
def test_every_replica_gets_the_gradient_of_all_with_zeros_for_what_it_lacks_and_none_that_nobody_has(
    replicas: int,
) -> None:
    figures = [replicas, sum(range(replicas))]
    for whole, idle in run_workers(replicas, with_and_without_an_idle_replica):
        assert whole == (expected(replicas), figures) and whole[0]["none"] is None
        assert idle == (expected(replicas, idle=0), figures)
