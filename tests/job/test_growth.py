"""A learning rate that the model does not stand is noticed in the run and taken back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch.nn import functional as F

import swell
from swell.core.events import GrowthTakenBack
from swell.core.types import Observation
from swell.telemetry.decisions import accounts
from swell.telemetry.log import read_events

BASE, LARGE = 8, 32


@dataclass(frozen=True)
class Grows:
    """Base batches at first, then large ones."""

    base: int = BASE
    follows_noise: ClassVar[bool] = True

    def batch(self, seen: Observation) -> int:
        return LARGE if seen.step >= 40 else BASE


def train(run_dir, *, rule, batch, steps=80):
    torch.manual_seed(0)
    x = torch.randn(4096, 4)
    y = x @ torch.tensor([1.0, -2.0, 0.5, 3.0]) + 0.5 * torch.randn(4096)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    job = swell.Job(run_dir, batch=batch, base=None if isinstance(batch, Grows) else BASE, rule=rule, micro=LARGE)
    job.wrap(model, optimizer)
    loader = job.loader(torch.utils.data.TensorDataset(x, y), shuffle=True)
    batches = []
    for _ in job.epochs(1):
        for rows, targets in loader:
            job.backward(F.mse_loss(model(rows).squeeze(1), targets))
            if job.step():
                batches.append(job.global_batch)
            if len(batches) >= steps:
                break
    job.close()
    return batches, list(read_events(run_dir / "events.jsonl"))


def test_a_growth_that_raises_the_loss_is_taken_back_and_explained(tmp_path):
    batches, events = train(tmp_path, rule=lambda scale: 40.0 if scale > 1 else 1.0, batch=Grows())
    (taken,) = [event for event in events if isinstance(event, GrowthTakenBack)]
    assert (taken.before, taken.after) == (BASE, LARGE) and taken.loss_after > taken.loss_before
    assert batches[40] == LARGE and batches[-1] == BASE
    told = [account for account in accounts(events) if account.step >= taken.step]
    assert "the loss rose" in told[0].headline and "learning rate follows" in told[0].headline
    assert any("at most 8 for now" in reason for reason in told[1].reasons)


@pytest.mark.parametrize(
    ("rule", "batch"),
    [("root", Grows()), (lambda scale: 40.0 if scale > 1 else 1.0, lambda seen: LARGE if seen.step >= 40 else BASE)],
    ids=["the loss does not rise", "the user chose the batches"],
)
def test_other_growths_stay(tmp_path, rule, batch):
    batches, events = train(tmp_path, rule=rule, batch=batch, steps=60)
    assert not [event for event in events if isinstance(event, GrowthTakenBack)]
    assert batches[-1] == LARGE
