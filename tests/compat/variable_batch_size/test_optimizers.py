"""Accumulate or update, with the learning rate of each rule, in one process."""

from __future__ import annotations

import copy
import io
import math
import sys
import types
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import swell.compat.variable_batch_size as vbs
from swell.core.moments import estimate, gain
from swell.errors import CheckpointError, ConfigError, DependencyError, LoopError
from tests.compat.variable_batch_size.loop import loss_of, problem, train, train_alone

EVERY_RULE = [
    vbs.LinearRuleOptimizer,
    vbs.RootRuleOptimizer,
    vbs.ConstantOptimizer,
    vbs.AdaScaleOptimizer,
    vbs.LinearRuleMomentumOptimizer,
]


def make(kind: Any = vbs.LinearRuleOptimizer, trace: Any = (64, 96, 96), **arguments: Any) -> tuple[Any, Any, Any, Any]:
    net, data = problem()
    sampler = vbs.CustomSampler(data, trace=trace, minibatch_size=32, at_end="hold")
    optimizer = kind(
        torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9), sampler, **{"ref_batchsize": 32} | arguments
    )
    return net, data, sampler, optimizer


@pytest.mark.parametrize("kind", EVERY_RULE)
def test_the_readmes_trace_does_accumulate_update_accumulate_accumulate_update(kind: Any) -> None:
    net, data, sampler, optimizer = make(kind)
    assert train(net, data, sampler, optimizer, range(1)) == [False, True, False, False, True, False, False, True]
    assert all(torch.isfinite(p).all() for p in net.parameters())


def test_accumulated_steps_are_those_of_whole_batches() -> None:
    net, data, sampler, optimizer = make(trace=[64, 96, 32, 160, 256])
    alone = copy.deepcopy(net)
    train(net, data, sampler, optimizer, range(3))
    train_alone(alone, data, sampler, torch.optim.SGD(alone.parameters(), lr=0.01, momentum=0.9), range(3))
    for ours, expected in zip(net.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-14)


def test_a_smaller_last_minibatch_weighs_less() -> None:
    net, data = problem()
    sampler = vbs.CustomSampler(data, trace=[100, 156], minibatch_size=32, multiples_only=False, at_end="hold")
    alone = copy.deepcopy(net)
    optimizer = vbs.LinearRuleOptimizer(torch.optim.SGD(net.parameters(), lr=0.01), sampler, ref_batchsize=32)
    train(net, data, sampler, optimizer, range(2))
    train_alone(alone, data, sampler, torch.optim.SGD(alone.parameters(), lr=0.01), range(2))
    for ours, expected in zip(net.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        (vbs.LinearRuleOptimizer, 96 / 48),
        (vbs.RootRuleOptimizer, math.sqrt(96 / 48)),
        (vbs.ConstantOptimizer, 1.0),
        (vbs.LinearRuleMomentumOptimizer, 32 / 48),
        (vbs.AdaScaleOptimizer, 1.0),
    ],
)
def test_each_rule_sets_its_learning_rate_and_puts_the_users_back(kind: Any, factor: float) -> None:
    net, data, sampler, optimizer = make(kind, trace=[96], ref_batchsize=48)
    assert optimizer.current_lr() == pytest.approx(0.01 * factor) and optimizer.get_bs() == 96
    train(net, data, sampler, optimizer, range(1))
    assert optimizer.get_lr() == [0.01]
    optimizer.set_lr(0.5)
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_summing_with_the_rate_of_a_minibatch_is_the_linear_rule_where_nothing_else_differs() -> None:
    results = []
    ways: list[tuple[Any, dict[str, Any]]] = [
        (vbs.LinearRuleOptimizer, {}),
        (vbs.LinearRuleMomentumOptimizer, {"weight_decay": 0.0}),
    ]
    for kind, extra in ways:
        net, data = problem()
        sampler = vbs.CustomSampler(data, trace=[64, 192], minibatch_size=32)
        train(net, data, sampler, kind(torch.optim.SGD(net.parameters(), lr=0.01), sampler, 64, **extra), range(1))
        results.append(list(net.parameters()))
    for linear, summed in zip(*results, strict=True):
        torch.testing.assert_close(linear, summed)


def test_weight_decay_is_taken_for_each_minibatch_and_each_groups_own_is_put_back() -> None:
    net, data = problem()
    layers: Any = net
    groups = [{"params": layers[0].parameters(), "weight_decay": 0.1}, {"params": layers[2].parameters()}]
    sampler = vbs.CustomSampler(data, trace=[128], minibatch_size=32, at_end="hold")
    decays: list[list[float]] = []
    inner = torch.optim.SGD(groups, lr=0.01)
    inner.register_step_pre_hook(lambda opt, *_: decays.append([group["weight_decay"] for group in opt.param_groups]))
    for argument, expected in ((None, [0.4, 0.0]), (0.02, [0.08, 0.08])):
        train(net, data, sampler, vbs.LinearRuleMomentumOptimizer(inner, sampler, 32, argument), range(1))
        assert decays[-1] == pytest.approx(expected)
        assert [group["weight_decay"] for group in inner.param_groups] == [0.1, 0]


def test_without_any_weight_decay_the_originals_default_is_used() -> None:
    net, data, sampler, optimizer = make(vbs.LinearRuleMomentumOptimizer, trace=[64])
    decays: list[float] = []
    optimizer._optimizer.register_step_pre_hook(lambda opt, *_: decays.append(opt.param_groups[0]["weight_decay"]))
    train(net, data, sampler, optimizer, range(1))
    assert decays == [2e-4] * 4


def test_adascale_measures_each_step_by_itself_and_without_bias_from_the_start() -> None:
    """ETH E2, E3 and E6: norms were differences to the last step, averages began at 1, noise was rescaled."""
    net, data = problem()
    sampler = vbs.CustomSampler(data, trace=[128, 64, 64], minibatch_size=32)
    optimizer = vbs.AdaScaleOptimizer(torch.optim.SGD(net.parameters(), lr=0.0), sampler, ref_batchsize=32)
    norms = []
    for minibatch in list(sampler)[:4]:
        net.zero_grad()
        x, y = data[minibatch]
        loss_of(net, x, y).backward()
        norms.append(nn.utils.parameters_to_vector([p.grad for p in net.parameters() if p.grad is not None]))
    small = sum(float(g @ g) for g in norms) / 4
    whole = torch.stack(norms).mean(0)
    expected = gain(2, estimate(small, float(whole @ whole), count=4, batch=128), base_batch=32)
    sampler.set_epoch(0)
    optimizer.set_epoch(0)
    for minibatch in list(sampler)[:4]:
        x, y = data[minibatch]
        loss_of(net, x, y).backward()
        optimizer.step()
    assert optimizer.gain() == pytest.approx(
        (expected,)
    )  # the next batch is 64: one step is enough for an unbiased gain


def test_adascale_takes_a_step_of_one_minibatch_as_it_comes() -> None:
    """ETH E4: a step of one minibatch was a ``ZeroDivisionError``."""
    net, data, sampler, optimizer = make(vbs.AdaScaleOptimizer, trace=[32, 64, 32, 96])
    train(net, data, sampler, optimizer, range(2))
    assert all(1 <= each <= 3 for each in optimizer.gain())


def test_minibatches_are_measured_and_added_up_without_waiting_for_the_device() -> None:
    """ETH E10: every parameter of every minibatch was read from the device."""
    net, data, sampler, optimizer = make(vbs.AdaScaleOptimizer, trace=[128])
    minibatches = list(sampler)
    for minibatch in minibatches[:3]:
        x, y = data[minibatch]
        loss_of(net, x, y).backward()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
            assert not optimizer.step()
        names = {event.name for event in profile.events() or ()}
        assert not {"aten::item", "aten::_local_scalar_dense"} & names


def test_schedulers_may_be_given_the_optimizer() -> None:
    net, data, sampler, optimizer = make()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for epoch in range(2):
        train(net, data, sampler, optimizer, range(epoch, epoch + 1))
        scheduler.step()
    assert optimizer.get_lr() == [0.0025]


def test_a_parameter_nobody_uses_keeps_no_gradient() -> None:
    net, data = problem()
    spare = nn.Parameter(torch.ones(2, dtype=torch.float64))
    sampler = vbs.CustomSampler(data, trace=64, minibatch_size=32)
    inner = torch.optim.SGD([*net.parameters(), spare], lr=0.1, weight_decay=0.5)
    train(net, data, sampler, vbs.ConstantOptimizer(inner, sampler), range(1))
    assert spare.tolist() == [1, 1]


@pytest.mark.parametrize("kind", EVERY_RULE)
def test_a_checkpoint_in_the_middle_of_an_epoch_goes_on_where_it_was(kind: Any) -> None:
    """ETH E9: neither sampler nor optimizer could be saved."""

    def at_half(net: Any, data: Any, sampler: Any, optimizer: Any) -> dict[str, Any]:
        sampler.set_epoch(0)
        optimizer.set_epoch(0)
        for x, y in DataLoader(data, batch_sampler=sampler):
            loss_of(net, x, y).backward()
            if optimizer.step() and optimizer.get_bs() == 128:
                break
        buffer = io.BytesIO()
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
        buffer.seek(0)
        return torch.load(buffer, weights_only=True)

    trace = [64, 128, 64]
    whole, data, sampler, optimizer = make(kind, trace=trace)
    train(whole, data, sampler, optimizer, range(2))
    state = at_half(*make(kind, trace=trace))
    net, data, sampler, optimizer = make(kind, trace=trace)
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    assert len(sampler) == 6
    train(net, data, sampler, optimizer, range(2))
    for ours, expected in zip(net.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours, expected)


def test_calls_out_of_step_are_noticed() -> None:
    """ETH E9: a skipped ``step()`` went unnoticed, and every step after it was wrong."""
    net, data, sampler, optimizer = make(trace=[128])
    with pytest.raises(LoopError, match="epoch"):
        optimizer.set_epoch(1)
    x, y = data[:32]
    loss_of(net, x, y).backward()
    optimizer.step()
    with pytest.raises(LoopError, match="accumulated"):
        optimizer.state_dict()
    sampler.set_epoch(1)
    with pytest.raises(LoopError, match="1 of 4 minibatches"):
        optimizer.set_epoch(1)
    for _ in range(7):
        optimizer.step()
    with pytest.raises(LoopError, match="minibatch"):
        optimizer.step()
    with pytest.raises(CheckpointError, match="variable_batch_size"):
        optimizer.load_state_dict(torch.optim.SGD(net.parameters(), lr=0.1).state_dict())


def test_an_epoch_left_early_is_reported() -> None:
    net, data, sampler, optimizer = make(trace=[32])
    x, y = data[:32]
    loss_of(net, x, y).backward()
    assert optimizer.step()
    sampler.set_epoch(1)
    with pytest.warns(UserWarning, match="1 of 8 steps"):
        optimizer.set_epoch(1)


def test_settings_that_do_not_fit_are_refused() -> None:
    net, data = problem()
    inner = torch.optim.SGD(net.parameters(), lr=0.1)
    sampler = vbs.CustomSampler(data, trace=64, num_replicas=2, rank=1)
    with pytest.raises(ConfigError, match="rank 1 of 2"):
        vbs.LinearRuleOptimizer(inner, sampler, 32)
    with pytest.raises(ConfigError, match="reduction"):
        vbs.CustomOptimizer(inner, vbs.CustomSampler(data, trace=64), reduction="median")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="ref_batchsize"):
        vbs.LinearRuleOptimizer(inner, vbs.CustomSampler(data, trace=64), 0)
    with pytest.raises(ConfigError, match="state_dict"):
        copy.deepcopy(vbs.LinearRuleOptimizer(inner, vbs.CustomSampler(data, trace=64), 32))


def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Modules with the names of torch_xla 2.9, for one of two replicas that have the same gradients."""
    calls: list[str] = []

    def all_reduce(kind: str, tensors: list[torch.Tensor]) -> None:
        calls.append(f"all_reduce {kind}")
        for tensor in tensors:
            tensor.mul_(2)

    xla: Any = types.ModuleType("torch_xla")
    core: Any = types.ModuleType("torch_xla.core")
    model: Any = types.ModuleType("torch_xla.core.xla_model")
    runtime: Any = types.ModuleType("torch_xla.runtime")
    xla.sync, xla.device = lambda: calls.append("sync"), lambda: torch.device("cpu")
    model.all_reduce, model.REDUCE_SUM, model.rendezvous = all_reduce, "sum", calls.append
    runtime.world_size, runtime.global_ordinal = lambda: 2, lambda: 0
    for module in (xla, core, model, runtime):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


def test_the_xla_adapter_speaks_through_the_names_of_torch_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    """ETH E7: it used names that torch_xla 2.9 no longer has."""
    calls = stand_in(monkeypatch)
    net, data = problem()
    collective = vbs.XlaCollective()
    sampler = vbs.CustomSampler(data, trace=64, num_replicas=2, rank=0, minibatch_size=32)
    inner = torch.optim.SGD(net.parameters(), lr=0.01)
    optimizer = vbs.LinearRuleOptimizer(inner, sampler, 32, collective=collective)
    assert train(net, data, sampler, optimizer, range(1)) == [True] * 4
    assert calls.count("all_reduce sum") == 8 and calls[-1] == "sync"
    assert calls.count("sync") <= 8, "the graph is cut by exchanges, not by minibatches"
    collective.barrier()
    assert calls[-1] == "swell" and (collective.rank, collective.size) == (0, 2)
    assert collective.gather_numbers([1.5]) == [[3.0], [0.0]]
    tensor = torch.ones(1)
    collective.broadcast_tensors([tensor], source=1)
    assert tensor.item() == 0


def test_without_torch_xla_the_adapter_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_xla", None)
    with pytest.raises(DependencyError, match="torch_xla"):
        vbs.XlaCollective()


def test_steps_are_logged_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    net, data, sampler, optimizer = make(trace=[64], log_steps=2)
    train(net, data, sampler, optimizer, range(1))
    assert capsys.readouterr().out.splitlines() == [
        "epoch 0 step 0: batch size 64, lr 0.02",
        "epoch 0 step 2: batch size 64, lr 0.02",
    ]
