"""What facades of other libraries ask of a job: gradients weighed after a plain backward pass, a word before saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import swell
from swell.core.types import Plan
from swell.loop.pace import Pace
from swell.loop.statistics import Statistics
from swell.policies import Fixed
from tests.job.scenario import Points, largest_relative_error, make_model, mean_loss


def trained(*, plainly: bool, **settings: Any) -> list[torch.Tensor]:
    job, model = swell.Job(batch=8, micro=3, **settings), make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    job.wrap(model, optimizer)
    for x, y, _ in job.loader(Points(40)):
        loss = mean_loss(model, x, y)
        if plainly:
            loss.backward()
            job.engine.steps.weigh(job.engine.state.learners)
        else:
            job.backward(loss)
        job.step()
    job.close()
    return [p.detach().clone() for p in model.parameters()]


def test_weighing_gradients_afterwards_is_weighing_the_loss_before() -> None:
    assert largest_relative_error(trained(plainly=True), trained(plainly=False)) < 1e-14


def test_a_save_waits_for_the_users_code_after_the_step_and_is_announced(tmp_path: Path) -> None:
    job, model = swell.Job(tmp_path, batch=8, save=1e-9), make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05))
    seen: list[str] = []
    job.engine.hooks.before_boundary = lambda: seen.append("announced")
    for x, y, _ in job.loader(Points(16)):
        job.engine.saving.wait()  # type: ignore[union-attr]  # a save that is being written puts the next one off
        job.backward(mean_loss(model, x, y))
        if job.step():
            seen.append("after the step")
    job.close()
    assert seen == ["after the step", "announced"] * 2


def test_steps_are_never_split_where_that_is_not_wanted() -> None:
    assert not any(Statistics(split_every=None).splits(step, awaited=True) for step in range(500))


def test_a_step_is_timed_by_what_the_replicas_agreed_on() -> None:
    pace = Pace(Fixed(8), micro=None, constant_micro=False, capacity=None)
    made: Plan = pace.lay_out(8, 8, replicas=2, split=False)
    for _ in range(7):
        pace.timed(0.25)
        pace.committed(made, batch=8, samples=0, gain=1.0, nodes=1)
    assert [summary.step_s for summary in pace.profile.summaries()] == [0.25]
    pace.enter_world()
    before = pace.profile.state_dict()
    pace.timed(9.0)  # of a step in the world before: nobody else would count it
    assert pace.profile.state_dict() == before and pace.resized


@pytest.mark.parametrize("late", [False, True])
def test_parameters_added_between_steps_are_trained(late: bool) -> None:
    job, model = swell.Job(batch=8, micro=4), make_model()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.05)  # type: ignore[index]
    job.wrap(model, optimizer)
    before = model[2].weight.detach().clone()  # type: ignore[index]
    for number, (x, y, _) in enumerate(job.loader(Points(32))):
        job.backward(mean_loss(model, x, y))
        if job.step() and late and number == 3:
            optimizer.add_param_group({"params": list(model[2].parameters())})  # type: ignore[index]
    job.close()
    assert torch.equal(model[2].weight, before) != late  # type: ignore[index]
