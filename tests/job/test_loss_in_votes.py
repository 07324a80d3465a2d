"""The loss of a step that is not measured travels in the votes, where every replica has it on the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import swell
from swell.core.events import Event, Stepped
from swell.errors import LossError
from swell.job.step_loss import StepLoss
from tests.workers import run_workers

SAMPLES, BATCH = 21, 6  # the last step has 3 samples, so that some of five workers have none


class Numbers(torch.utils.data.Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((1,), float(index), dtype=torch.float64), index


class Losses:
    """A sink that keeps the losses of all steps."""

    def __init__(self) -> None:
        self.heard: list[float | None] = []

    def emit(self, event: Event) -> None:
        if isinstance(event, Stepped):
            self.heard.append(event.loss)

    def close(self) -> None:
        """Nothing to do."""


def weight_of(index: Tensor) -> float:
    return float(1 + index.sum() % 3)


def train(collective: Any, every: int, weighted: bool, on_device: int | None, broken: int | None = None) -> Any:
    """Losses as they were told, and for each micro-batch whether the votes of its step carried them."""
    if on_device == collective.rank:
        StepLoss.on_host = property(lambda self: False)  # type: ignore[assignment,method-assign]
    losses = Losses()
    statistics = swell.Statistics(every=every) if every else False
    job = swell.Job(batch=BATCH, micro=2, rule="constant", statistics=statistics, progress=False, sinks=[losses])
    model = nn.Linear(1, 1).double()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0))
    loader, carried = job.loader(Numbers()), []
    for _ in job.epochs(2):
        for x, index in loader:
            loss = (model.weight * 0 + x).mean()
            if broken is not None and broken in index.tolist():
                loss = loss * torch.nan
            job.backward(loss, weight=weight_of(index) if weighted else None)
            carried.append(job.engine.state.learners[0].early.votes_carry_loss)
            try:
                job.step()
            except LossError:
                job.close()
                return "refused", carried
    job.close()
    return losses.heard, carried


def means() -> list[float]:
    """Of each step of an epoch."""
    steps = [range(start, min(start + BATCH, SAMPLES)) for start in range(0, SAMPLES, BATCH)]
    return [sum(step) / len(step) for step in steps]


@pytest.mark.distributed
@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("every", [0, 3], ids=["unmeasured", "some measured"])
def test_every_loss_is_the_mean_over_all_samples_of_its_step(world: int, every: int) -> None:
    results = run_workers(world, train, every, False, None)
    heard, carried = results[0]
    assert heard == pytest.approx(means() * 2)
    assert carried[0] is False and all(carried[-2:]), "agreed on by the votes of the first step"


@pytest.mark.distributed
def test_losses_with_weights_are_those_of_sums() -> None:
    in_votes = run_workers(2, train, 0, True, None)
    in_sums = run_workers(2, train, 0, True, 1)
    assert in_votes[0][0] == pytest.approx(in_sums[0][0])
    assert any(in_votes[0][1]) and not any(in_sums[0][1])


@pytest.mark.distributed
def test_they_travel_as_sums_where_one_replica_has_them_on_a_device() -> None:
    results = run_workers(3, train, 0, False, 1)
    assert results[0][0] == pytest.approx(means() * 2)
    assert not any(carried for _, all_carried in results for carried in all_carried)


@pytest.mark.distributed
def test_a_loss_that_is_not_finite_stops_every_replica() -> None:
    results = run_workers(3, train, 0, False, None, 14)  # in the third step, on one replica
    assert [kind for kind, _ in results] == ["refused"] * 3
