"""Every torch optimizer and every learning-rate scheduler runs, and a batch at its base changes nothing."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

import swell
from tests.job.scenario import Points, largest_relative_error, make_model, mean_loss

SPECIAL = {
    "LBFGS": "works by closure; see test_loops_of_every_kind.py",
    "SparseAdam": "needs sparse gradients; see below",
    "Muon": "needs matrices only; see below",
}
ARGUMENTS: dict[str, dict[str, Any]] = {"SGD": {"lr": 0.05, "momentum": 0.9}}
OPTIMIZERS = sorted(
    name
    for name, cls in vars(optim).items()
    if inspect.isclass(cls) and issubclass(cls, optim.Optimizer) and cls is not optim.Optimizer and name not in SPECIAL
)


def make_optimizer(name: str, parameters: Any) -> optim.Optimizer:
    return getattr(optim, name)(parameters, **ARGUMENTS.get(name, {"lr": 0.01}))


def train(name: str, *, batch: Any, base: int, rule: Any, epochs: int = 3) -> list[torch.Tensor]:
    job = swell.Job(batch=batch, base=base, rule=rule, micro=3)
    model = make_model()
    optimizer = make_optimizer(name, model.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a rule that does not suit the optimizer says so
        job.wrap(model, optimizer)
    loader = job.loader(Points(24))
    for _ in job.epochs(epochs):
        for x, y, _ in loader:
            job.backward(mean_loss(model, x, y))
            job.step()
    return [p.detach().clone() for p in model.parameters()]


def train_plain(name: str, *, batch: int, epochs: int = 3) -> list[torch.Tensor]:
    points, model = Points(24), make_model()
    optimizer = make_optimizer(name, model.parameters())
    for _ in range(epochs):
        for start in range(0, 24, batch):
            optimizer.zero_grad()
            mean_loss(model, points.x[start : start + batch], points.y[start : start + batch]).backward()
            optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("rule", ["auto", "linear", "adam-sde"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_at_the_base_batch_every_optimizer_takes_its_own_steps(name: str, rule: str) -> None:
    ours = train(name, batch=8, base=8, rule=rule)
    assert largest_relative_error(ours, train_plain(name, batch=8)) < 1e-9


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_follows_a_growing_batch_and_gets_its_own_values_back(name: str) -> None:
    job = swell.Job(batch=lambda seen: 4 * 2 ** min(seen.epoch, 2), base=4, rule="auto", micro=4)
    model = make_model()
    optimizer = make_optimizer(name, model.parameters())
    before = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    job.wrap(model, optimizer)
    loader = job.loader(Points(24), shuffle=True)
    for _ in job.epochs(4):
        for x, y, _ in loader:
            job.backward(mean_loss(model, x, y))
            job.step()
    assert [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups] == before
    assert all(p.isfinite().all() for p in model.parameters())
    assert job.global_batch == 16


def test_a_rule_that_does_not_suit_the_optimizer_says_so() -> None:
    job = swell.Job(batch=8, rule="adascale")
    model = make_model()
    with pytest.warns(UserWarning, match="Adam"):
        job.wrap(model, optim.Adam(model.parameters()))


def test_sparse_gradients_reach_sparse_adam() -> None:
    job = swell.Job(batch=8, micro=4)
    embedding = nn.Embedding(20, 3, sparse=True)
    model = nn.Sequential(embedding, nn.Flatten())
    optimizer = optim.SparseAdam(model.parameters())
    job.wrap(model, optimizer)
    loader = job.loader(torch.arange(16).reshape(16, 1) % 10)
    before = embedding.weight.detach().clone()
    for _ in job.epochs(2):
        for x in loader:
            job.backward(model(x).square().mean())
            job.step()
    changed = (embedding.weight.detach() != before).any(dim=1)
    assert changed[:10].all() and not changed[10:].any()


def test_muon_beside_adamw_as_two_optimizers_of_one_job() -> None:
    if not hasattr(optim, "Muon"):
        pytest.skip("this torch has no Muon")
    model = make_model()
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    job = swell.Job(batch=lambda seen: 4 + 4 * min(seen.epoch, 1), base=4, micro=8, statistics=False)
    job.wrap(model, optim.Muon(matrices, lr=0.01))
    job.wrap(model, optim.AdamW(others, lr=0.01))
    loader = job.loader(Points(16))
    before = [p.detach().clone() for p in model.parameters()]
    for _ in job.epochs(2):
        for x, y, _ in loader:
            job.backward(mean_loss(model, x, y))
            assert job.step()
    assert all((p != q).any() for p, q in zip(model.parameters(), before, strict=True))
    assert job.samples == 32


def schedulers(optimizer: optim.Optimizer) -> dict[str, Any]:
    """One of each kind, made for 12 base steps."""
    chain = [lr_scheduler.ConstantLR(optimizer, 0.5, 2), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    return {
        "LambdaLR": lambda: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
        "MultiplicativeLR": lambda: lr_scheduler.MultiplicativeLR(optimizer, lambda step: 0.9),
        "StepLR": lambda: lr_scheduler.StepLR(optimizer, 3),
        "MultiStepLR": lambda: lr_scheduler.MultiStepLR(optimizer, [2, 5]),
        "ConstantLR": lambda: lr_scheduler.ConstantLR(optimizer),
        "LinearLR": lambda: lr_scheduler.LinearLR(optimizer),
        "ExponentialLR": lambda: lr_scheduler.ExponentialLR(optimizer, 0.9),
        "PolynomialLR": lambda: lr_scheduler.PolynomialLR(optimizer, 12),
        "CosineAnnealingLR": lambda: lr_scheduler.CosineAnnealingLR(optimizer, 12),
        "CosineAnnealingWarmRestarts": lambda: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4),
        "CyclicLR": lambda: lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=4),
        "OneCycleLR": lambda: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=13),
        "SequentialLR": lambda: lr_scheduler.SequentialLR(optimizer, chain, milestones=[4]),
        "ChainedScheduler": lambda: lr_scheduler.ChainedScheduler(chain),
    }


def base_learning_rates(name: str, *, batch: int) -> list[float]:
    job = swell.Job(batch=batch, base=4, rule="linear", micro=4)
    model = make_model()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    job.wrap(model, optimizer, scheduler=schedulers(optimizer)[name]())
    loader = job.loader(Points(24))
    rates = []
    for _ in job.epochs(2):
        for x, y, _ in loader:
            job.backward(mean_loss(model, x, y))
            if job.step():
                rates.append(float(optimizer.param_groups[0]["lr"]))
    return rates


@pytest.mark.filterwarnings("ignore::UserWarning:torch.optim.lr_scheduler")
@pytest.mark.parametrize("name", sorted(schedulers(optim.SGD(make_model().parameters(), lr=0.1, momentum=0.9))))
def test_every_scheduler_keeps_its_meaning_in_base_steps_when_the_batch_grows(name: str) -> None:
    small, large = base_learning_rates(name, batch=4), base_learning_rates(name, batch=12)
    assert len(small) == 12 and len(large) == 4
    assert large == pytest.approx(small[2::3], rel=1e-12)


def test_a_scheduler_stepped_by_epoch_by_the_user_keeps_working() -> None:
    job = swell.Job(batch=8, base=4, rule="linear", micro=4)
    model = make_model()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    job.wrap(model, optimizer)
    loader = job.loader(Points(24))
    used: list[float] = []
    optimizer.register_step_pre_hook(lambda inner, args, kwargs: used.append(float(inner.param_groups[0]["lr"])))
    for _ in job.epochs(2):
        for x, y, _ in loader:
            job.backward(mean_loss(model, x, y))
            job.step()
        scheduler.step()
    assert used == pytest.approx([0.2] * 3 + [0.02] * 3)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001)


def test_plateau_schedulers_are_left_to_the_user() -> None:
    job = swell.Job(batch=8)
    model = make_model()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(swell.errors.ConfigError, match="schedule='manual'"):
        job.wrap(model, optimizer, scheduler=lr_scheduler.ReduceLROnPlateau(optimizer))
