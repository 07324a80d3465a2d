"""Guarantee 4 with real processes: what reaches the optimizer depends on the batch of the step, not on those before."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import swell
from swell.core.types import ScaleState
from swell.rules import as_rule
from tests.job.scenario import Points, train
from tests.workers import run_workers

BASE, LR = 6, 0.05
RULES = {"linear": torch.optim.SGD, "root": torch.optim.Adam, "adam-sde": torch.optim.Adam}
WAYS = [[6, 12, 24, 6], [24, 6, 24, 6], [12, 12, 6, 18]]


def rates(collective: Any) -> dict[str, list[list[float]]]:
    """For each rule and way, the learning rate of each step as this replica's optimizer saw it."""
    found: dict[str, list[list[float]]] = {}
    for rule, kind in RULES.items():
        found[rule] = []
        for way in WAYS:
            settings = {"batch": swell.Trace([*way, BASE], base=BASE), "rule": rule, "micro": 4, "statistics": False}
            seen = train(Points(80), make_optimizer=lambda p, kind=kind: kind(p, lr=LR), **settings)
            found[rule].append(seen.lr)
    return found


@pytest.mark.distributed
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_the_learning_rate_of_a_step_is_that_of_its_batch_whichever_batches_came_before(world: int) -> None:
    for replica in run_workers(world, rates):
        for rule, seen in replica.items():
            for way, found in zip(WAYS, seen, strict=True):
                scales = [batch / BASE for batch in way]
                factors = [as_rule(rule).factors(ScaleState(scale=scale, base_batch=BASE)).lr for scale in scales]
                assert found[: len(way)] == pytest.approx([LR * factor for factor in factors], rel=1e-12)
                assert found[len(way)] == LR, "back at the base batch the user's own learning rate is back"
