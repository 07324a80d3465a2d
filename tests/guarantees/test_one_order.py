"""Guarantee 3 with real processes: seed and epoch say which samples a step takes, whoever computes them."""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate
from typing import Any

import pytest
import torch

import swell
from swell.core.order import Shuffled
from tests.job.scenario import Points, make_model, mean_loss
from tests.workers import run_workers

N, EPOCHS, SEED = 47, 2, 11


def samples_by_step(collective: Any, batches: list[int], micro: int) -> dict[int, list[int]]:
    """This replica's samples of each step; where a step has none for it, it is left out."""
    found: dict[int, list[int]] = defaultdict(list)
    policy = swell.Trace(batches * 20, base=batches[0])
    with swell.Job(batch=policy, micro=micro, rule="constant", seed=SEED) as job:
        model = make_model()
        job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05))
        loader = job.loader(Points(N), shuffle=True)
        for _ in job.epochs(EPOCHS):
            for x, y, index in loader:
                found[job.steps] += index.tolist()
                job.backward(mean_loss(model, x, y))
                job.step()
    return dict(found)


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("world", "batches", "micro"), [(1, [9], 4), (2, [9, 14, 5], 3), (3, [20, 7], 2), (5, [6, 13, 8], 2)]
)
def test_every_step_takes_the_next_samples_of_the_order_on_any_world(
    world: int, batches: list[int], micro: int
) -> None:
    steps: dict[int, list[int]] = defaultdict(list)
    for replica in run_workers(world, samples_by_step, batches, micro):
        for step, samples in replica.items():
            steps[step] += samples
    taken = [sorted(steps[step]) for step in sorted(steps)]
    order = [index for epoch in range(EPOCHS) for index in Shuffled(N, seed=SEED, epoch=epoch).indices(0, N).tolist()]
    ends = list(accumulate(map(len, taken)))
    assert ends[-1] == N * EPOCHS
    assert taken == [sorted(order[end - len(step) : end]) for step, end in zip(taken, ends, strict=True)]
