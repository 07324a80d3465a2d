"""In a job whose policy follows the noise, learning rate and progress follow a growth over some steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch.nn import functional as F

import swell
from swell.core.types import Observation

BASE, GROWTH, STEPS = 4, 8, 70
BATCHES = [BASE] * 5 + [GROWTH * BASE] * 60 + [BASE] * 5


@dataclass(frozen=True)
class Planned:
    """Batches by the step, which the user knows before."""

    base: int = BASE

    def batch(self, seen: Observation) -> int:
        return BATCHES[seen.step]


@dataclass(frozen=True)
class Measured(Planned):
    follows_noise: ClassVar[bool] = True


def train(batch: Planned, run_dir: Path | None = None, *, steps: int = STEPS) -> list[float]:
    """The factors of the learning rate, step by step."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    job = swell.Job(run_dir, batch=batch, rule="linear", micro=GROWTH * BASE, progress=False, seed=0)
    job.wrap(model, optimizer)
    loader = job.loader(torch.utils.data.TensorDataset(torch.ones(4096, 3), torch.ones(4096, 1)), shuffle=True)
    factors = []
    for _ in job.epochs(1):
        for rows, targets in loader:
            job.backward(F.mse_loss(model(rows), targets))
            if job.step():
                factors.append(job.lr_factors[0])
                assert job.gain == pytest.approx(factors[-1])  # the linear rule counts what it does
            if job.steps >= steps:
                if run_dir is not None:
                    job.save()
                job.close()
                return factors
    raise AssertionError("the epoch is longer than that")


def test_what_the_user_planned_is_followed_at_once() -> None:
    assert train(Planned()) == pytest.approx([batch / BASE for batch in BATCHES])


def test_what_follows_the_noise_is_followed_by_a_doubling_in_16_steps_and_back_at_once() -> None:
    expected = [1.0] * 5 + [min(2 ** (step / 16), GROWTH) for step in range(1, 61)] + [1.0] * 5
    assert train(Measured()) == pytest.approx(expected)


@pytest.mark.parametrize("cut", [3, 12, 40])
def test_a_resumed_run_follows_where_it_was(tmp_path: Path, cut: int) -> None:
    whole = train(Measured())
    first = train(Measured(), tmp_path, steps=cut)
    assert first + train(Measured(), tmp_path) == pytest.approx(whole)
