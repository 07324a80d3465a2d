"""Guarantee 1: the gradient that reaches the optimizer is the gradient of the mean loss over the step's samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import swell
from swell.core.types import Observation
from tests.job.scenario import Points, gradients_alone, largest_relative_error, make_model, mean_loss, train
from tests.workers import run_workers


def varying(batches: list[int]) -> Any:
    """A policy that goes round a list of batch sizes."""

    def batch(seen: Observation) -> int:
        return batches[seen.step % len(batches)]

    return batch


@settings(max_examples=30)
@given(
    n=st.integers(8, 60),
    batches=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    micro=st.integers(1, 8),
    shuffle=st.booleans(),
)
def test_any_batch_and_micro_batch_give_the_gradient_of_the_mean_loss(
    n: int, batches: list[int], micro: int, shuffle: bool
) -> None:
    dataset = Points(n)
    seen = train(
        dataset,
        epochs=2,
        batch=varying(batches),
        base=batches[0],
        rule="constant",
        micro=micro,
        loading={"shuffle": shuffle},
    )
    assert [len(step) for step in seen.steps_of_samples[:1]] == [min(batches[0], n)]
    for mine, alone in zip(seen.gradients, gradients_alone(dataset, seen.steps_of_samples), strict=True):
        assert largest_relative_error(mine, alone) < 1e-12


def train_in_a_world(collective: Any, n: int, batches: list[int], micro: int) -> Any:
    return train(
        Points(n),
        epochs=2,
        batch=varying(batches),
        base=max(batches),
        rule="constant",
        micro=micro,
        loading={"shuffle": True},
    )


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("world", "n", "batches", "micro"),
    [(1, 40, [8, 5], 3), (2, 41, [7, 12, 9], 4), (3, 50, [10, 11, 16], 3), (5, 53, [12, 17, 9], 2)],
)
def test_the_number_of_workers_does_not_change_the_gradient(world: int, n: int, batches: list[int], micro: int) -> None:
    replicas = run_workers(world, train_in_a_world, n, batches, micro)
    alone = train(
        Points(n), epochs=2, batch=varying(batches), base=max(batches), rule="constant", loading={"shuffle": True}
    )
    for seen in replicas:
        assert len(seen.gradients) == len(alone.gradients)
        for mine, other in zip(seen.gradients, alone.gradients, strict=True):
            assert largest_relative_error(mine, other) < 1e-12
    everything = sorted(sample for seen in replicas for micro_batch in seen.samples for sample in micro_batch)
    assert everything == sorted(list(range(n)) * 2)
    for seen in replicas:
        assert seen.metrics["seen"] == 2 * n
        assert seen.metrics["loss"] == pytest.approx(alone.metrics["loss"], rel=1e-9)


def clipped(collective: Any, clip: Any) -> Tensor:
    job = swell.Job(batch=8, seed=1, rule="constant", progress=False)
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.5))
    loader = job.loader(Points(17))  # one sample is left over: only the first replica has any
    for _ in job.epochs(2):
        for x, y, _index in loader:
            job.backward(mean_loss(model, x, y))
            job.step(clip=clip)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def clip_to_a_tenth(parameters: list[Tensor]) -> None:
    torch.nn.utils.clip_grad_norm_(parameters, 0.1)


@pytest.mark.distributed
@pytest.mark.parametrize("clip", [0.1, clip_to_a_tenth], ids=["number", "function"])
def test_a_replica_without_a_sample_clips_as_the_others_do(clip: Any) -> None:
    alone = clipped(None, clip)
    for weights in run_workers(3, clipped, clip):
        torch.testing.assert_close(weights, alone, atol=1e-12, rtol=1e-12)
