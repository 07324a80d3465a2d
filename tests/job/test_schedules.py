"""A scheduler that was handed over is stepped by swell alone, and must last as long as the run."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import swell
from swell.errors import ConfigError, LoopError
from tests.job.scenario import Points, make_model, mean_loss


def train(make: Any, *, own_steps: bool = False, **settings: Any) -> tuple[swell.Job, Any]:
    """Four steps in two epochs."""
    job, model = swell.Job(batch=4), make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = make(optimizer)
    job.wrap(model, optimizer, scheduler=scheduler, **settings)
    loader = job.loader(Points(8))
    for _ in job.epochs(2):
        for x, y, _ in loader:
            job.backward(mean_loss(model, x, y))
            if job.step() and own_steps:
                scheduler.step()
    job.close()
    return job, scheduler


@pytest.mark.parametrize("by", ["progress", "epoch"])
def test_a_scheduler_that_the_script_steps_too_is_refused(by: str) -> None:
    with pytest.raises(LoopError, match=r"scheduler\.step\(\).*schedule='manual'"):
        train(lambda o: lr_scheduler.ExponentialLR(o, 0.9), own_steps=True, schedule=by)


def test_a_scheduler_that_is_not_handed_over_to_be_stepped_is_the_scripts() -> None:
    _, scheduler = train(lambda o: lr_scheduler.ExponentialLR(o, 0.9), own_steps=True, schedule="manual")
    assert scheduler.last_epoch == 4


def test_a_scheduler_that_is_shorter_than_the_run_says_how_long_it_must_be() -> None:
    with pytest.raises(ConfigError, match=r"ended before the run.*base batch"):
        train(lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=3))
    with pytest.raises(ConfigError, match=r"ended before the run.*in epochs"):
        train(lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=1), schedule="epoch")
    train(lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=5))


def test_an_error_of_the_schedulers_own_stays_what_it_is() -> None:
    with pytest.raises(ValueError, match=r"expected a positive input|math domain error"):
        train(lambda o: lr_scheduler.LambdaLR(o, lambda step: math.log(2 - step) + 1))


def test_a_scheduler_may_be_wound_forward_before_the_run() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    with swell.Job(batch=4) as job:
        job.wrap(model, optimizer, scheduler=scheduler)
        scheduler.load_state_dict({**scheduler.state_dict(), "last_epoch": 7})
        for x, y, _ in job.loader(Points(8)):
            job.backward(mean_loss(model, x, y))
            job.step()
    assert scheduler.last_epoch == 9


def test_one_scheduler_cannot_serve_two_optimizers() -> None:
    models = [make_model(seed=1), make_model(seed=2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    scheduler = lr_scheduler.ExponentialLR(optimizers[0], 0.9)
    with swell.Job(batch=4) as job:
        job.wrap(models[0], optimizers[0], scheduler=scheduler)
        with pytest.raises(ConfigError, match=r"ExponentialLR.*another optimizer"):
            job.wrap(models[1], optimizers[1], scheduler=scheduler)
    del scheduler.optimizer  # such a scheduler does not tell whom it steers
    with swell.Job(batch=4) as job:
        job.wrap(models[0], optimizers[0], scheduler=scheduler)
        with pytest.raises(ConfigError, match="scheduler is wrapped already"):
            job.wrap(models[1], optimizers[1], scheduler=scheduler)


@pytest.mark.parametrize(
    "wrong",
    [lr_scheduler.StepLR, lambda step: 0.1, "cosine", object()],
    ids=["a class", "a function", "a name", "an object"],
)
def test_what_is_no_scheduler_is_refused_where_it_is_given(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="scheduler; expected"):
        train(lambda optimizer: wrong)


def test_a_scheduler_may_be_made_for_an_optimizer_that_shares_the_groups() -> None:
    model = make_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = torch.optim.SGD(model.parameters(), lr=0.1)
    outer.param_groups = inner.param_groups  # as optimizers around another one do
    swell.Job(batch=4).wrap(model, outer, scheduler=lr_scheduler.ExponentialLR(inner, 0.9))


@pytest.mark.parametrize(
    "make",
    [
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.ConstantLR(o, total_iters=2), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[2]
        ),
        lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)]),
        lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=2),
        lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, cycle_momentum=False),
    ],
)
def test_schedulers_of_every_kind_move_once_a_base_step(make: Any) -> None:
    job, scheduler = train(make)
    alone = make(torch.optim.SGD(make_model().parameters(), lr=0.1))
    for _ in range(4):
        alone.optimizer.step() if hasattr(alone, "optimizer") else None
        alone.step()
    assert job.steps == 4
    assert scheduler.get_last_lr() == alone.get_last_lr()
