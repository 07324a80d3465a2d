"""Policies that choose the micro-batch as well: within the job's bound, and every change is in the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import swell
from swell.core.events import BatchChanged, Event, Stepped
from swell.core.types import Layout, Observation
from swell.errors import ConfigError
from tests.job.scenario import Points, make_model, mean_loss


@dataclass(frozen=True)
class InTurns:
    """A batch of 16, in one micro-batch and in two, three steps each; keeps to what it is told of its bounds."""

    base: int = 16

    def batch(self, seen: Observation) -> int:
        return self.layout(seen).global_batch

    def layout(self, seen: Observation) -> Layout:
        wanted = 8 if seen.step // 3 % 2 else 16
        return Layout(global_batch=16, micro_batch=min(wanted, seen.max_micro or wanted))


class Heard:
    def __init__(self) -> None:
        self.changes: list[BatchChanged] = []
        self.micro: list[int] = []

    def emit(self, event: Event) -> None:
        if isinstance(event, BatchChanged):
            self.changes.append(event)
        elif isinstance(event, Stepped):
            self.micro.append(event.micro_batch)

    def close(self) -> None: ...


def heard(**settings: Any) -> Heard:
    told = Heard()
    job = swell.Job(batch=InTurns(), progress=False, sinks=[told], statistics=False, **settings)
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0))
    loader = job.loader(Points(16 * 12))
    for _ in job.epochs(1):
        for x, y, _index in loader:
            job.backward(mean_loss(model, x, y))
            job.step()
    return told


def test_other_micro_batches_are_a_decision_like_any_other() -> None:
    told = heard()
    assert [(c.step, c.before, c.after, c.micro_before, c.micro_after) for c in told.changes] == [
        (3, 16, 16, 16, 8),
        (6, 16, 16, 8, 16),
        (9, 16, 16, 16, 8),
    ]
    assert all(decision.same for decision in swell.policies.replay(InTurns(), told.changes))
    assert told.micro == [16] * 3 + [8] * 3 + [16] * 3 + [8] * 3


def test_the_largest_micro_batch_of_the_job_bounds_them() -> None:
    told = heard(micro=4)
    assert told.micro == [4] * 12 and not told.changes


@pytest.mark.parametrize("settings", [{"micro": (2, 8)}, {"constant_micro": True}], ids=["smallest", "constant"])
def test_other_bounds_are_given_to_the_policy(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Give the bounds to the policy"):
        heard(**settings)
