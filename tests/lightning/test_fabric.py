"""Fabric: the user's own loop gives the plain loop's weights on one worker, and the same on any number of them."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.lightning.scenario import data, loss_of, make_model, train_with_fabric
from tests.workers import run_processes

close = pytest.approx


def swell_weights(samples: int, micro: int = 4, **options: Any) -> list[float]:
    import swell.lightning

    strategy = swell.lightning.Strategy(batch=16, schedule=options.get("decay") or "manual")
    return train_with_fabric(samples, micro=micro, strategy=strategy, **options)


def swell_weights_with(options: dict[str, Any]) -> list[float]:
    return swell_weights(**options)


@pytest.mark.parametrize("options", [{}, {"clip": 0.3}, {"decay": "progress"}, {"decay": "epoch"}], ids=str)
def test_at_a_fixed_batch_the_weights_are_those_of_the_plain_loop(options: dict[str, Any]) -> None:
    plain = train_with_fabric(96, micro=16, **options)
    assert swell_weights(96, micro=16, **options) == close(plain, rel=1e-13)
    assert swell_weights(96, **options) == close(plain, rel=1e-12)


@pytest.mark.distributed
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize(
    "options", [{"samples": 96}, {"samples": 100, "clip": 0.3}, {"samples": 97, "decay": "progress"}], ids=str
)
def test_any_number_of_workers_gives_the_same_weights(workers: int, options: dict[str, Any]) -> None:
    alone = swell_weights_with(options)
    for weights in run_processes(workers, swell_weights_with, options, timeout_s=120):
        assert weights == close(alone, rel=1e-12)


def exchanged() -> tuple[Any, ...]:
    from lightning.fabric import Fabric
    from torch.utils.data import DataLoader

    import swell.lightning

    strategy = swell.lightning.Strategy(batch=16)
    fabric = Fabric(accelerator="cpu", strategy=strategy)
    fabric.launch()
    before = fabric.all_reduce(torch.tensor(float(fabric.global_rank)), reduce_op="sum").item()
    model = make_model()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader, others = fabric.setup_dataloaders(DataLoader(data(32), batch_size=8), DataLoader(data(7), batch_size=7))
    seen = []
    for epoch in strategy.epochs(2):
        for batch in loader:
            fabric.backward(loss_of(model, batch))
            optimizer.step()
        fabric.barrier()
        rank = torch.tensor(float(fabric.global_rank + epoch))
        seen.append(fabric.all_reduce(rank.clone(), reduce_op="mean").item())
        seen.append(fabric.all_gather(rank).tolist())
        seen.append(fabric.broadcast({"epoch": epoch, "rank": fabric.global_rank}, src=1))
        seen.append(len(next(iter(others))[0]))
    return before, fabric.world_size, *seen


@pytest.mark.distributed
def test_workers_can_exchange_values_between_steps_and_evaluate_whole_data_sets() -> None:
    for answer in run_processes(2, exchanged, timeout_s=120):
        first = (0.5, [0.0, 1.0], {"epoch": 0, "rank": 1}, 7)
        second = (1.5, [1.0, 2.0], {"epoch": 1, "rank": 1}, 7)
        assert answer == (1.0, 2, *first, *second)
