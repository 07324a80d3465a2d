"""In a world of one the host makes the same figures of a measured step as the exchange does on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from swell.job.gradient_noise import Reading
from swell.job.learner import Learner
from swell.job.peers import ALONE
from swell.rules import AdamMeanGain, MeanGain

WEIGHTS = (0.5, 0.2, 0.3)


def make(of: Callable[[Any], Optimizer], dtype: torch.dtype) -> Learner:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3), nn.Embedding(4, 3, sparse=False)).to(dtype)
    optimizer = of([{"params": [*model[0].parameters()]}, {"params": [*model[2].parameters(), *model[3].parameters()]}])
    rule = AdamMeanGain() if isinstance(optimizer, AdamW) else MeanGain()
    return Learner(model, optimizer, rule=rule, scaler=None, schedule=None, base_batch=8, exact=False)


def gradients_of_a_step(learner: Learner, seed: int) -> None:
    """Three micro-batches of different weights; no gradient ever reaches the embedding."""
    generator = torch.Generator().manual_seed(seed)
    dtype = next(learner.model.parameters()).dtype
    for weight in WEIGHTS:
        inputs = torch.randn(8, 6, generator=generator).to(dtype)
        loss = learner.model[:3](inputs).square().mean()  # type: ignore[index]
        (loss * weight).backward()
        learner.loss.add(loss, weight)
        learner.gradients.take(multiplier=weight, measure=True, preconditioned=learner.wants_preconditioned)


def by_exchange(learner: Learner) -> Tensor:
    return learner.exchange(ALONE, learner.gradients.codes(), share=1.0, measured=True, extras=())


def by_host(learner: Learner) -> Any:
    return learner.settle_alone(share=1.0, measured=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("of", [lambda groups: SGD(groups, lr=0.1), AdamW])
def test_both_ways_give_the_same_noise_and_the_same_loss(of: Callable[[Any], Optimizer], dtype: torch.dtype) -> None:
    found = []
    for settle in (by_exchange, by_host):
        learner, losses, grads = make(of, dtype), list[float | None](), list[Tensor]()
        for step in range(9):
            gradients_of_a_step(learner, step)
            figures, preconditioned = settle(learner), learner.wants_preconditioned
            reading = Reading(losses.append, len(WEIGHTS), 24, 24, num_groups=2)
            learner.read(figures, None, preconditioned=preconditioned, reading=reading, pair=None)
            grads += [p.grad.clone() for p in learner.gradients.parameters if p.grad is not None]
            learner.optimizer.step()
            learner.gradients.preconditioner.stepped()
            learner.clear()
        found.append((learner.noise.plain.estimate(), learner.noise.preconditioned.estimate(), losses, grads))
    (plain, metric, losses, grads), (host_plain, host_metric, host_losses, host_grads) = found
    tolerance = 1e-4 if dtype != torch.float64 else 1e-9
    assert host_losses == pytest.approx(losses, rel=tolerance) and len(losses) == 9
    torch.testing.assert_close(host_grads, grads, rtol=0, atol=0)
    assert (metric is None) == (host_metric is None) == (of is not AdamW)
    for one, other in ((plain, host_plain), (metric, host_metric)):
        if one is not None and other is not None:
            assert other.observations == one.observations
            for mine, theirs in zip(other.groups, one.groups, strict=True):
                assert (mine.signal, mine.noise) == pytest.approx((theirs.signal, theirs.noise), rel=tolerance)
