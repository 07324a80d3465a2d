"""A job carries Adam's second moment over when the batch changes, on any number of replicas and across a resume."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import swell
from swell.gradients.second_moment import follow_batch
from tests.job.scenario import Points, make_model, mean_loss
from tests.workers import run_workers

N = 75  # samples of an epoch: its last step is short, and no change of the batch
POLICY = swell.Schedule([(0, 8), (56, 32), (107, 16)])  # steps at 8, 8, 8, 8, 8, 8, 8, 19 | 32, 16, 16, 11
CHANGES = {7: (8, 32), 9: (32, 16)}  # by step


def second_moments(optimizer: Any) -> list[float]:
    return [float(value) for state in optimizer.state.values() for value in state["exp_avg_sq"].flatten()]


def train(
    collective: Any, rule: Any, folder: str | None = None, stop_after: int | None = None
) -> tuple[list[tuple[int, list[float], list[float]]], list[float]]:
    """Each step's number and its second moments, as they were left before it and as its update found them; weights."""
    job = swell.Job(folder, batch=POLICY, micro=5, rule=rule, seed=1, statistics=False)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    job.wrap(model, optimizer)
    loader = job.loader(Points(N), shuffle=True)
    steps: list[tuple[int, list[float], list[float]]] = []
    before: Any = None

    def clip(parameters: list[torch.Tensor]) -> None:
        steps.append((job.steps, [] if before is None else expected(before, job.steps), second_moments(optimizer)))

    for _ in job.epochs(2):
        for x, y, _ in loader:
            job.backward(mean_loss(model, x, y))
            if job.step(clip=clip):
                before = copy.deepcopy(optimizer)
                if job.steps == stop_after:
                    job.save()
                    return steps, []
    job.close()
    return steps, [float(value) for parameter in model.parameters() for value in parameter.detach().flatten()]


def expected(optimizer: Any, step: int) -> list[float]:
    if step in CHANGES:
        before, after = CHANGES[step]
        follow_batch(optimizer, before=before, after=after)
    return second_moments(optimizer)


@pytest.mark.distributed
@pytest.mark.parametrize("world", [1, 2, 3])
def test_an_update_at_a_new_batch_finds_the_second_moment_of_that_batch(world: int) -> None:
    ((alone, weights),) = run_workers(1, train, "auto")
    for steps, found in run_workers(world, train, "auto"):
        assert found == pytest.approx(weights, rel=1e-9)
        assert [step for step, _, _ in steps] == list(range(12))
        for step, left, at_update in steps[1:]:
            assert at_update == pytest.approx(left, rel=1e-12), step
    assert len(alone) == 12


def test_a_rule_that_keeps_it_or_knows_nothing_of_it_leaves_it_alone() -> None:
    kept = [train(None, rule)[1] for rule in (swell.rules.AdamMeanGain(second_moment="keep"), "root")]
    assert kept[0] == pytest.approx(kept[1], rel=1e-12)
    assert kept[0] != pytest.approx(train(None, "auto")[1], rel=1e-3)


@pytest.mark.distributed
@pytest.mark.parametrize("stop", [7, 8, 9])
def test_a_run_that_is_resumed_where_the_batch_changes_carries_it_over_once(tmp_path: Path, stop: int) -> None:
    run_workers(2, train, "auto", str(tmp_path), stop)
    weights = train(None, "auto")[1]
    assert train(None, "auto", str(tmp_path))[1] == pytest.approx(weights, rel=1e-9)
