"""Optimizers that step on every n-th call: the same class, the same state, the mean gradient."""

from __future__ import annotations

import copy
import io
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from swell.compat.runai.ga.torch import optim
from swell.errors import CheckpointError, ConfigError
from tests.golden.runai import scenarios

GOLDEN = json.loads(Path(scenarios.__file__).with_name("numbers.json").read_text())


def problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(48, 5, dtype=torch.float64)
    return nn.Linear(5, 2).double(), x, x[:, :2] + torch.randn(48, 2, dtype=torch.float64)


def loss_of(net: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (net(x) - y).square().mean()


class Scheduled(torch.optim.SGD):
    """An optimizer with a constructor of its own."""

    def __init__(self, params: Any, horizon: int, *, lr: float) -> None:
        super().__init__(params, lr=lr)
        self.horizon = horizon


@pytest.mark.parametrize("name", scenarios.OPTIMIZERS)
def test_the_ready_made_optimizers_step_as_run_ais_do_on_a_loss_divided_for_them(name: str) -> None:
    weights = scenarios.accumulated(getattr(optim, name), divide_loss=False)
    assert weights == pytest.approx(GOLDEN["weights"][name], rel=1e-9)


@pytest.mark.parametrize("parallel", [False, True])
def test_accumulated_steps_are_those_of_the_whole_batch(parallel: bool) -> None:
    """Run:AI R2: gradients were added up, so steps were too large by their number."""
    device = "cuda" if torch.cuda.is_available() else "cpu"  # where nn.DataParallel computes
    net, x, y = problem()
    net, x, y = net.to(device), x.to(device), y.to(device)
    whole = copy.deepcopy(net)
    inner = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    optimizer = optim.Optimizer(inner, 4)
    expected = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    model = nn.DataParallel(net) if parallel else net
    for _ in range(3):
        for part in range(4):
            optimizer.zero_grad()
            loss_of(model, x[part::4], y[part::4]).backward()
            optimizer.step()
        expected.zero_grad()
        loss_of(whole, x, y).backward()
        expected.step()
        for ours, theirs in zip(net.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_the_optimizer_keeps_its_class_its_state_and_its_defaults() -> None:
    """Run:AI R7: wrapping dropped momentum, moments and defaults."""
    net, x, y = problem()
    inner = torch.optim.Adam(net.parameters(), lr=0.1, betas=(0.5, 0.9))
    loss_of(net, x, y).backward()
    inner.step()
    optimizer = optim.Optimizer(inner, 2)
    assert isinstance(optimizer, torch.optim.Adam) and type(optimizer).__name__ == "Adam"
    assert optimizer.state is inner.state and optimizer.param_groups is inner.param_groups
    assert optimizer.defaults["betas"] == (0.5, 0.9) and optimizer.state_dict()["state"][0]["step"] == 1


def test_an_optimizer_with_a_constructor_of_its_own_can_be_wrapped() -> None:
    """Run:AI R7: such optimizers were a ``TypeError``."""
    optimizer = optim.Optimizer(Scheduled([nn.Parameter(torch.zeros(1))], 7, lr=0.1), 2)
    assert isinstance(optimizer, Scheduled) and optimizer.horizon == 7


@pytest.mark.parametrize("way", ["state_dict", "pickle", "deepcopy"])
def test_half_an_accumulation_survives_saving_and_copying(way: str) -> None:
    """Run:AI R7: checkpoints needed ``weights_only=False``, and pickling failed."""
    net, x, y = problem()
    optimizer = optim.AdamW(3, net.parameters(), lr=0.1)
    for part in range(4):
        loss_of(net, x[part::8], y[part::8]).backward()
        optimizer.step()
    if way == "state_dict":
        buffer = io.BytesIO()
        torch.save(optimizer.state_dict(), buffer)
        buffer.seek(0)
        other_net = copy.deepcopy(net)
        other = optim.AdamW(3, other_net.parameters(), lr=0.5)
        other.load_state_dict(torch.load(buffer, weights_only=True))
    elif way == "pickle":
        other_net, other = pickle.loads(pickle.dumps((net, optimizer)))
    else:
        other_net, other = copy.deepcopy((net, optimizer))
    for each, its in ((net, optimizer), (other_net, other)):
        for part in range(4, 8):
            loss_of(each, x[part::8], y[part::8]).backward()
            its.step()
    for ours, theirs in zip(net.parameters(), other_net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_a_plain_checkpoint_can_be_loaded_and_one_with_other_steps_only_between_steps() -> None:
    net, x, y = problem()
    optimizer = optim.SGD(2, net.parameters(), lr=0.1)
    optimizer.load_state_dict(torch.optim.SGD(net.parameters(), lr=0.3).state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.3
    loss_of(net, x, y).backward()
    optimizer.step()
    with pytest.raises(CheckpointError, match="1 of 2 gradients"):
        optim.SGD(3, net.parameters(), lr=0.1).load_state_dict(optimizer.state_dict())


def test_a_scheduler_can_follow_real_steps() -> None:
    """Run:AI R8: schedulers counted micro-batches."""
    net, x, y = problem()
    optimizer = optim.SGD(4, net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(8):
        loss_of(net, x, y).backward()
        optimizer.step()
        if optimizer.stepped:
            scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.025)


@pytest.mark.parametrize("unscale", [False, True])
def test_a_grad_scaler_unscales_every_gradient_once_and_an_overflow_is_not_counted(unscale: bool) -> None:
    """Run:AI R8: earlier gradients were unscaled again with every micro-batch."""
    net, x, y = problem()
    whole = copy.deepcopy(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = optim.SGD(2, net.parameters(), lr=0.1)
    for part in (0, None, 1):
        optimizer.zero_grad()
        loss = loss_of(net, x[part::2], y[part::2]) if part is not None else net(x).sum() * torch.inf
        scaler.scale(loss).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    expected = torch.optim.SGD(whole.parameters(), lr=0.1)
    loss_of(whole, x, y).backward()
    expected.step()
    for ours, theirs in zip(net.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_tail_of_an_epoch_is_stepped_with_instead_of_leaking_into_the_next() -> None:
    """Run:AI R9: the tail leaked into the next epoch."""
    net, x, y = problem()
    whole = copy.deepcopy(net)
    optimizer = optim.SGD(4, net.parameters(), lr=0.1)
    for part in range(2):
        loss_of(net, x[part::2], y[part::2]).backward()
        optimizer.step()
    assert optimizer.flush() and not optimizer.flush()
    loss_of(whole, x, y).backward()
    torch.optim.SGD(whole.parameters(), lr=0.1).step()
    for ours, theirs in zip(net.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_step_hooks_run_before_real_steps_only_so_the_whole_gradient_can_be_clipped() -> None:
    net, x, y = problem()
    optimizer = optim.SGD(3, net.parameters(), lr=1.0)

    def clip(*_: Any) -> None:
        nn.utils.clip_grad_norm_(net.parameters(), 0.01)

    optimizer.register_step_pre_hook(clip)
    before = nn.utils.parameters_to_vector(net.parameters()).detach().clone()
    for _ in range(3):
        loss_of(net, x, y).backward()
        optimizer.step()
    moved = nn.utils.parameters_to_vector(net.parameters()).detach() - before
    assert moved.norm().item() == pytest.approx(0.01, rel=1e-3)


def test_gradients_may_be_cleared_in_either_way_at_any_time() -> None:
    net, x, y = problem()
    optimizer = optim.SGD(2, net.parameters(), lr=0.1)
    for set_to_none in (True, False):
        loss_of(net, x, y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
    assert optimizer.stepped


def test_a_closure_gives_its_loss_on_every_call() -> None:
    net, x, y = problem()
    optimizer = optim.SGD(2, net.parameters(), lr=0.1)

    def closure() -> torch.Tensor:
        loss = loss_of(net, x, y)
        loss.backward()
        return loss

    assert all(optimizer.step(closure) > 0 for _ in range(4))


@pytest.mark.parametrize("steps", [0, -1, 2.5])
def test_steps_that_are_no_count_are_refused(steps: Any) -> None:
    with pytest.raises(ConfigError, match="steps"):
        optim.SGD(steps, [nn.Parameter(torch.zeros(1))], lr=0.1)


def test_an_accumulating_optimizer_is_not_wrapped_twice() -> None:
    with pytest.raises(ConfigError, match="optimizer"):
        optim.Optimizer(optim.SGD(2, [nn.Parameter(torch.zeros(1))], lr=0.1), 2)


class Old(torch.optim.SGD):
    """An optimizer as people wrote it before ``set_to_none``: its ``zero_grad`` takes no argument."""

    def zero_grad(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


def test_an_optimizer_whose_zero_grad_takes_no_argument_works_as_any_other() -> None:
    net, x, y = problem()
    optimizer = optim.Optimizer(Old(net.parameters(), lr=0.1), 2)
    for part in range(2):
        optimizer.zero_grad()
        loss_of(net, x[part * 24 : part * 24 + 24], y[part * 24 : part * 24 + 24]).backward()
        optimizer.step()
    whole, _, _ = problem()
    expected = torch.optim.SGD(whole.parameters(), lr=0.1)
    loss_of(whole, x, y).backward()
    expected.step()
    for one, other in zip(net.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_the_number_of_steps_is_where_run_ai_kept_it() -> None:
    net, x, y = problem()
    optimizer = optim.SGD(4, net.parameters(), lr=0.1)
    assert (optimizer.runai.steps, optimizer.runai.taken) == (4, 0)
    loss_of(net, x, y).backward()
    optimizer.step()
    assert (optimizer.runai.steps, optimizer.runai.taken) == (4, 1)
    assert copy.deepcopy(optimizer).runai == optimizer.runai
