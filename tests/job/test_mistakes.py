"""Mistakes that would train something else without a word: refused before anything moves, and nothing is lost."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import swell
from swell.errors import LoopError, WorldError
from tests.job.scenario import Points, finish, make_model, mean_loss
from tests.workers import Died, run_workers


def begin(**settings: Any) -> tuple[swell.Job, Any, torch.optim.Optimizer, Any]:
    job, model = swell.Job(**{"batch": 8, "micro": 4, **settings}), make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.wrap(model, optimizer)
    return job, model, optimizer, job.loader(Points(16))


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# optimizer.step() beside job.step()


@pytest.mark.parametrize("place", ["before job.step", "after job.step", "before job.backward"])
def test_the_scripts_own_optimizer_step_in_the_loop_is_refused_before_it_moves_anything(place: str) -> None:
    job, model, optimizer, loader = begin(micro=8, statistics=False)
    before = weights(model)
    with pytest.raises(LoopError, match=r"optimizer\.step\(\)"):
        for x, y, _ in loader:
            if place == "before job.backward":
                optimizer.step()
            job.backward(mean_loss(model, x, y))
            if place == "before job.step":
                optimizer.step()
            job.step()
            before = weights(model)
            optimizer.step()
    assert same(weights(model), before)
    assert job.steps == (place == "after job.step")
    done = job.samples
    assert finish(job, model, loader) == list(range(done, 16))


def test_outside_the_loop_the_optimizer_is_the_scripts() -> None:
    job, model, optimizer, loader = begin()
    x, y = Points(4).x, Points(4).y

    def own() -> None:
        before = weights(model)
        mean_loss(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert not same(weights(model), before)

    own()
    for _ in job.epochs(2):
        own()
        finish(job, model, loader)
        own()
    own()
    job.close()
    own()


def test_another_optimizer_may_be_stepped_in_the_loop() -> None:
    job, model, _, loader = begin()
    other = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    own = torch.optim.SGD([other], lr=0.1)
    for x, y, _ in loader:
        job.backward(mean_loss(model, x, y))
        job.step()
        (other - 1).square().sum().backward()
        own.step()
    assert job.steps == 2 and float(other.detach()) > 0


def test_a_job_that_is_closed_lets_the_optimizer_go_to_another_one() -> None:
    job, model, optimizer, loader = begin()
    finish(job, model, loader)
    job.close()
    other = swell.Job(batch=8)
    other.wrap(model, optimizer)
    assert finish(other, model, other.loader(Points(16))) == list(range(16))


# No gradient at all


@pytest.mark.parametrize("mistake", ["another model", "zero_grad"])
def test_an_update_without_any_gradient_is_refused_and_nothing_is_committed(mistake: str) -> None:
    job, model, optimizer, loader = begin()
    other = make_model(seed=4)
    with pytest.raises(LoopError, match=r"gradient.*zero_grad"):
        for x, y, _ in loader:
            job.backward(mean_loss(other if mistake == "another model" else model, x, y))
            if mistake == "zero_grad":
                optimizer.zero_grad()
            job.step()
    assert (job.steps, job.samples) == (0, 0)
    assert finish(job, model, loader) == list(range(16))


def test_after_such_an_update_the_step_can_be_done_again() -> None:
    job, model, optimizer, loader = begin(micro=8)
    refused = 0
    for x, y, _ in loader:
        job.backward(mean_loss(model, x, y))
        if not refused:
            optimizer.zero_grad()
        try:
            job.step()
        except LoopError:
            refused += 1
    assert (refused, job.steps, job.samples) == (1, 2, 16)


def test_an_optimizer_may_rest_while_another_one_learns() -> None:
    job = swell.Job(batch=8, micro=4)
    models = [make_model(seed=1), make_model(seed=2)]
    for model in models:
        job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = job.loader(Points(16))
    for resting in (0, 1):
        before = [weights(model) for model in models]
        for x, y, _ in loader:
            job.backward(mean_loss(models[1 - resting], x, y))
            if job.step():
                break
        assert same(weights(models[resting]), before[resting])
        assert not same(weights(models[1 - resting]), before[1 - resting])


def one_errs(collective: Any) -> str:
    job, model, _, loader = begin()
    other = make_model()
    try:
        for x, y, _ in loader:
            job.backward(mean_loss(other if collective.rank else model, x, y))
            job.step()
    except LoopError:
        os._exit(7)  # as a script that ends on it
    except WorldError as error:
        return type(error).__name__
    return "nobody noticed"


@pytest.mark.distributed
def test_a_replica_that_errs_alone_does_not_leave_the_others_waiting() -> None:
    assert run_workers(2, one_errs, may_die=[1]) == ["WorldError", Died(7)]


# Late registration, and loops without a loader


class Counter:
    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None: ...


def test_what_is_registered_after_the_run_was_joined_is_refused() -> None:
    job, _, _, _ = begin()
    job.register("in time", Counter())
    for _ in job.epochs(1):
        with pytest.raises(LoopError, match=r"register\('late'\).*before the loop"):
            job.register("late", Counter())


def test_a_turn_of_until_that_leaves_the_loader_alone_is_refused() -> None:
    job, model, _, loader = begin()
    with pytest.raises(LoopError, match=r"did not go through the training loader"):
        for _ in job.until(steps=10):
            pass
    turns = [finish(job, model, loader) for _ in job.until(steps=4)]
    assert [len(rows) for rows in turns] == [16, 16]


# Batch norm, and whom a warning points at


@pytest.mark.parametrize("n", [18, 19])
def test_the_short_step_of_an_epoch_is_never_cut_only_to_be_measured(n: int) -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    job = swell.Job(batch=8, statistics=swell.Statistics(split_every=1))
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = job.loader(Points(n))
    sizes = []
    for _ in job.epochs(2):
        for x, y, _ in loader:
            sizes.append(len(y))
            job.backward(mean_loss(model, x, y))
            job.step()
    assert sizes == 2 * [4, 4, 4, 4, n - 16] and job.noise is not None


def test_the_warning_about_other_settings_points_at_the_scripts_own_line(tmp_path: Path) -> None:
    def train(lr: float) -> None:
        job, model = swell.Job(tmp_path, batch=8), make_model()
        job.wrap(model, torch.optim.SGD(model.parameters(), lr=lr))
        loader = job.loader(Points(16))
        for _ in job.epochs(1):
            finish(job, model, loader)

    train(0.1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        train(0.2)
    assert [Path(warning.filename).name for warning in told] == [Path(__file__).name]
