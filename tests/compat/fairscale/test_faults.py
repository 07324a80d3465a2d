"""What FairScale's AdaScale got wrong and ours gets right; each test is named after what ours does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from swell.compat.fairscale.optim import AdaScale
from swell.errors import LoopError
from tests.compat.fairscale.loop import accumulate, loss_of, problem, train


def make(net: nn.Module, **arguments: Any) -> AdaScale:
    settings: dict[str, Any] = {"num_gradients_to_accumulate": 2} | arguments
    return AdaScale(torch.optim.SGD(net.parameters(), lr=0.05), **settings)


def without_moving(net: nn.Module, **arguments: Any) -> AdaScale:
    """Around an optimizer that never moves, so that signal and noise are constants."""
    return AdaScale(torch.optim.SGD(net.parameters(), lr=0.0), **arguments)


def test_without_the_rescaling_a_change_of_scale_gives_the_true_gain_at_once() -> None:
    """FairScale F1: ``set_scale`` rescaled the variance, which biased the gain at every change of the batch."""
    net = problem()
    known = without_moving(net, num_gradients_to_accumulate=16)
    train(net, known, 40, count=16)
    gains = {}
    for update_estimate in (True, False):
        optimizer = without_moving(net, num_gradients_to_accumulate=4)
        train(net, optimizer, 100, count=4)
        optimizer.set_num_gradients_to_accumulate(16)
        optimizer.set_scale(16, update_estimate=update_estimate)
        gains[update_estimate] = optimizer.gain()
    assert gains[False] == pytest.approx(known.gain(), rel=0.1)
    assert gains[True] < 0.8 * known.gain()  # FairScale's default, kept for those who need its numbers


def scaled_step(scaler: torch.amp.GradScaler, net: nn.Linear, optimizer: AdaScale, *, break_it: bool = False) -> None:
    for _ in range(2):
        scaler.scale(loss_of(net) / 2).backward()
    if break_it:
        assert net.weight.grad is not None
        net.weight.grad[0, 0] = torch.inf
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def test_an_overflow_under_a_grad_scaler_costs_one_step_and_nothing_else() -> None:
    """FairScale F2: one overflow entered the averages, and weights were NaN two steps later."""
    net = problem()
    optimizer = make(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaled_step(scaler, net, optimizer)
    gain, weight = optimizer.gain(), net.weight.detach().clone()
    scaled_step(scaler, net, optimizer, break_it=True)
    assert (optimizer.gain(), optimizer.dropped) == (gain, 1) and net.weight.equal(weight)
    for _ in range(3):
        scaled_step(scaler, net, optimizer)
    assert 1 <= optimizer.gain() <= 2 and torch.isfinite(net.weight).all() and not net.weight.equal(weight)


def test_a_gradient_that_is_not_finite_is_left_out_of_the_averages_without_a_scaler_too() -> None:
    """FairScale F2: the same without a scaler."""
    net = problem()
    optimizer = make(net)
    train(net, optimizer, 2)
    gain = optimizer.gain()
    (loss_of(net) * torch.nan).backward()
    accumulate(net, 1)
    assert optimizer.gain() == gain
    assert optimizer.dropped == 1


@pytest.mark.parametrize("unscale", [False, True])
def test_statistics_are_those_of_unscaled_gradients_whatever_the_scaler_does(unscale: bool) -> None:
    """FairScale F3: gradients were measured before they were unscaled, so a change of the scale froze the gain."""
    net = problem()
    plain_net = copy.deepcopy(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2, growth_factor=4.0)
    optimizer, plain = make(net, grad_scaler=scaler if unscale else None), make(plain_net)
    for step in range(6):
        torch.manual_seed(step)
        for _ in range(2):
            scaler.scale(loss_of(net) / 2).backward()
        if unscale:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        torch.manual_seed(step)
        accumulate(plain_net, 2)
        if unscale:
            nn.utils.clip_grad_norm_(plain_net.parameters(), 0.5)
        plain.step()
        plain.zero_grad()
        assert optimizer.gain() == pytest.approx(plain.gain(), rel=1e-4)
    torch.testing.assert_close(net.weight, plain_net.weight)


def test_half_precision_gradients_are_squared_without_overflow() -> None:
    """FairScale F2: squares of float16 gradients overflowed by themselves."""
    parameter = nn.Parameter(torch.zeros(10, dtype=torch.float16))
    optimizer = AdaScale(torch.optim.SGD([parameter], lr=0.0), num_gradients_to_accumulate=2)
    for sign in (1.0, 0.5):
        (parameter * 300 * sign).sum().backward()
    optimizer.step()
    assert optimizer.dropped == 0 and 1 < optimizer.gain() < 2


def test_micro_batches_are_counted_right_under_reentrant_checkpointing() -> None:
    """FairScale F10: reentrant checkpointing changed the gain silently."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    forwards: list[Callable[[Any, torch.Tensor], torch.Tensor]] = [
        lambda net, x: net(x),
        lambda net, x: net[2:](checkpoint(net[:2], x.requires_grad_(), use_reentrant=True)),
        lambda net, x: checkpoint(net, x.requires_grad_(), use_reentrant=True),
        lambda net, x: checkpoint(net, x, use_reentrant=False),
    ]
    gains = []
    for forward in forwards:
        other = copy.deepcopy(net)
        torch.manual_seed(1)
        gains.append(train(lambda x, forward=forward, other=other: forward(other, x), make(other), 3))
    for others in gains[1:]:
        assert others == pytest.approx(gains[0], rel=1e-5)


def test_gradients_taken_without_accumulating_are_no_micro_batches() -> None:
    """FairScale F11: ``torch.autograd.grad`` counted as a micro-batch."""
    net = problem()
    other = copy.deepcopy(net)
    optimizer, plain = make(net), make(other)
    for each in (net, other):
        torch.manual_seed(1)
        for _ in range(2):
            loss = loss_of(each)
            if each is net:
                torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)
            (loss / 2).backward()
    assert optimizer.gain() == plain.gain() > 1


def test_two_backward_calls_for_one_micro_batch_are_refused_when_they_reach_the_same_parameters() -> None:
    """FairScale F11: two backward() calls for a micro-batch counted as two."""
    net = problem()
    optimizer = make(net)
    for _ in range(2):
        loss_of(net).backward()
        loss_of(net).backward()
    with pytest.raises(LoopError, match="num_gradients_to_accumulate"):
        optimizer.step()


def test_losses_of_different_parameters_may_be_sent_back_one_after_the_other() -> None:
    """FairScale F11: so did two losses of different parameters."""
    nets = [problem(0), problem(1)]
    both = [p for net in nets for p in net.parameters()]
    optimizer = AdaScale(torch.optim.SGD(both, lr=0.05), num_gradients_to_accumulate=2)
    for _ in range(2):
        for net in nets:
            (loss_of(net) / 2).backward()
    assert 1 < optimizer.gain() <= 2
    optimizer.step()


def test_a_short_accumulation_steps_with_the_mean_of_what_there_is_at_its_own_scale() -> None:
    """FairScale F12: the last, short accumulation of an epoch was an ``AssertionError``."""
    net = problem()
    short = copy.deepcopy(net)
    optimizer, expected = make(net, num_gradients_to_accumulate=4), make(short, num_gradients_to_accumulate=2)
    torch.manual_seed(1)
    for _ in range(2):
        (loss_of(net) / 4).backward()  # the epoch ends here
    optimizer.step()
    torch.manual_seed(1)
    accumulate(short, 2)
    expected.step()
    torch.testing.assert_close(net.weight, short.weight)
    assert optimizer.progress == pytest.approx(expected.progress, rel=1e-5)
    assert optimizer.gain() > optimizer.progress  # back at its whole scale


def test_a_short_accumulation_of_an_undivided_loss_is_divided_by_what_there_is() -> None:
    """FairScale F12: the same where the script does not divide its loss."""
    net = problem()
    short = copy.deepcopy(net)
    optimizer = make(net, num_gradients_to_accumulate=4, is_scaled_loss=False)
    expected = make(short, num_gradients_to_accumulate=2)
    torch.manual_seed(1)
    accumulate(net, 2, divide=False)
    optimizer.scale_grad_by_num_grads_to_accum()
    optimizer.step()
    torch.manual_seed(1)
    accumulate(short, 2)
    expected.step()
    torch.testing.assert_close(net.weight, short.weight)
    assert optimizer.progress == pytest.approx(expected.progress, rel=1e-5)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_thrown_away_by_the_model_are_forgotten(set_to_none: bool) -> None:
    """FairScale F12: ``model.zero_grad()`` in the middle of an accumulation gave a wrong gain."""
    net = problem()
    other = copy.deepcopy(net)
    optimizer, expected = make(net), make(other)
    accumulate(net, 2 if not set_to_none else 1)
    net.zero_grad(set_to_none=set_to_none)
    for each, its in ((net, optimizer), (other, expected)):
        torch.manual_seed(1)
        accumulate(each, 2)
        its.step()
    assert optimizer.progress == expected.progress


def test_one_worker_without_accumulation_is_measured_by_differences_of_steps() -> None:
    """FairScale F13: one worker without accumulation was refused."""
    net = problem()
    known = without_moving(net, num_gradients_to_accumulate=8, scale=8.0)
    train(net, known, 60, count=8)
    alone = without_moving(net, num_gradients_to_accumulate=1, scale=1.0, single_worker="differences")
    train(net, alone, 500, count=1)
    alone.set_scale(8.0, update_estimate=False)
    assert alone.gain() == pytest.approx(known.gain(), rel=0.25)


def test_it_shrinks_to_one_worker_without_accumulation_and_keeps_its_gain() -> None:
    """FairScale F13: getting there at run time made every gain NaN."""
    net = problem()
    optimizer = make(net, single_worker="differences")
    train(net, optimizer, 5)
    gain = optimizer.gain()
    optimizer.set_num_gradients_to_accumulate(1)
    train(net, optimizer, 3, count=1)
    assert optimizer.gain() == pytest.approx(gain, rel=0.2)


def test_gains_are_read_from_the_device_once_a_step_and_small_figures_only() -> None:
    """FairScale F18: the device was waited for once for every parameter."""
    net = problem()
    optimizer = make(net)
    accumulate(net, 2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        optimizer.gain()
        optimizer.step()
    names = [event.name for event in profile.events() or ()]
    assert names.count("aten::item") == 0 and names.count("aten::_local_scalar_dense") == 0
