"""AdaScale is an optimizer like any other: to schedulers, scalers, checkpoints, copies and frozen layers."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from swell.compat.fairscale.optim import AdaScale, AdaScaleWrapper
from swell.errors import CheckpointError, ConfigError, LoopError
from tests.compat.fairscale.loop import accumulate, loss_of, problem, train


def make(net: nn.Module, **arguments: Any) -> AdaScale:
    settings: dict[str, Any] = {"num_gradients_to_accumulate": 2} | arguments
    return AdaScale(torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), **settings)


def saved(optimizer: AdaScale) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def test_it_is_a_torch_optimizer_that_shares_everything_with_the_one_inside() -> None:
    inner = torch.optim.SGD(problem().parameters(), lr=0.05)
    optimizer = AdaScale(inner, num_gradients_to_accumulate=2)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.param_groups is inner.param_groups and optimizer.state is inner.state
    with pytest.raises(AttributeError, match="no_such_name"):
        optimizer.no_such_name  # noqa: B018


@pytest.mark.parametrize("schedule", ["StepLR", "OneCycleLR", "ReduceLROnPlateau", "SequentialLR"])
def test_schedulers_see_and_set_the_learning_rate_without_the_gain(schedule: str) -> None:
    net = problem()
    optimizer = make(net)
    schedulers = torch.optim.lr_scheduler
    scheduler: Any = {
        "StepLR": lambda: schedulers.StepLR(optimizer, 1, gamma=0.5),
        "OneCycleLR": lambda: schedulers.OneCycleLR(optimizer, 0.5, total_steps=4),
        "ReduceLROnPlateau": lambda: schedulers.ReduceLROnPlateau(optimizer),
        "SequentialLR": lambda: schedulers.SequentialLR(
            optimizer, [schedulers.ConstantLR(optimizer), schedulers.ExponentialLR(optimizer, 0.9)], [2]
        ),
    }[schedule]()
    for _ in range(3):
        accumulate(net, 2)
        lr = optimizer.param_groups[0]["lr"]
        optimizer.step()
        assert optimizer.param_groups[0]["lr"] == lr
        optimizer.zero_grad()
        scheduler.step(1.0) if schedule == "ReduceLROnPlateau" else scheduler.step()
    assert 1 < optimizer.gain() <= 2


def test_a_tensor_learning_rate_is_left_as_it_was() -> None:
    """FairScale F6: a tensor learning rate compounded with every gain."""
    net = problem()
    lr = torch.tensor(0.1)
    optimizer = AdaScale(torch.optim.SGD(net.parameters(), lr=lr), num_gradients_to_accumulate=2)
    train(net, optimizer, 6)
    assert optimizer.param_groups[0]["lr"] is lr and lr.item() == pytest.approx(0.1)


def test_a_copy_and_an_unpickled_one_go_on_as_the_original_does() -> None:
    """FairScale F17: copies and unpickled ones recursed without end."""
    net = problem()
    optimizer = make(net)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    train(net, optimizer, 3)
    pairs = [copy.deepcopy((net, optimizer)), pickle.loads(pickle.dumps((net, optimizer)))]
    weights = []
    for other, its in [(net, optimizer), *pairs]:
        torch.manual_seed(5)
        gains = train(other, its, 2)
        weights.append((other.weight, gains, its.progress))
    for weight, gains, progress in weights[1:]:
        torch.testing.assert_close(weight, weights[0][0], rtol=0, atol=0)
        assert (gains, progress) == weights[0][1:]


def test_checkpoints_are_complete_and_load_safely() -> None:
    """FairScale F7 and F8: checkpoints needed ``weights_only=False``, and lacked scale, smoothing and accumulation."""
    net = problem()
    optimizer = make(net, scale=3.5, smoothing=0.9)
    optimizer.set_num_gradients_to_accumulate(4, update_smoothing=False)
    train(net, optimizer, 3, count=4)
    other = make(problem())
    other.load_state_dict(saved(optimizer))
    assert (other.scale, other.smoothing, other.gain(), other.progress) == (
        3.5,
        0.9,
        optimizer.gain(),
        optimizer.progress,
    )
    assert other.state_dict()["state"]["adascale"] == optimizer.state_dict()["state"]["adascale"]
    assert other.state_dict()["state"][0]["momentum_buffer"].equal(
        optimizer.state_dict()["state"][0]["momentum_buffer"]
    )


def test_a_checkpoint_of_the_plain_optimizer_begins_with_a_gain_of_one() -> None:
    """FairScale F8: a plain optimizer's checkpoint was a ``KeyError`` at the first gain."""
    net = problem()
    optimizer = make(net)
    train(net, optimizer, 2)
    optimizer.load_state_dict(torch.optim.SGD(problem().parameters(), lr=0.3).state_dict())
    assert optimizer.gain() == 1.0 and optimizer.param_groups[0]["lr"] == 0.3


@pytest.mark.parametrize("debias", [True, False])
def test_a_checkpoint_of_fairscale_itself_is_taken_over(debias: bool) -> None:
    net = problem()
    optimizer = make(net, debias_ewma=debias)
    train(net, optimizer, 3)
    ours = copy.deepcopy(optimizer.state_dict())
    averages = ours["state"]["adascale"]
    ending = "_biased" if debias else "_total"
    theirs = {
        f"grad_{name}_avg{end}": torch.tensor(averages[key]).numpy()
        for name, key in (("sqr", "signal"), ("var", "noise"))
        for end, key in (("", key), (ending, f"{key}_sum"))
    }
    for name in ("sqr", "var"):
        if debias:
            theirs[f"grad_{name}_avg_unbias"] = torch.tensor(averages["weight"]).numpy()
        else:
            theirs[f"grad_{name}_avg_count"] = torch.tensor([averages["count"]]).numpy()
    other_net = copy.deepcopy(net)
    other = make(other_net, debias_ewma=debias)
    other.load_state_dict({**ours, "state": {**ours["state"], "adascale": theirs}})
    assert other.gain() == pytest.approx(optimizer.gain(), rel=1e-6)
    torch.manual_seed(1)
    expected = train(net, optimizer, 2)
    torch.manual_seed(1)
    assert train(other_net, other, 2) == pytest.approx(expected, rel=1e-6)


def test_a_checkpoint_of_other_parameter_groups_is_refused() -> None:
    net = problem()
    state = make(net).state_dict()
    state["state"]["adascale"]["signal"] = [1.0, 1.0]
    with pytest.raises(CheckpointError, match="2 parameter groups"):
        make(net).load_state_dict(state)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_can_be_cleared_in_place_or_to_none(set_to_none: bool) -> None:
    """FairScale F17: ``zero_grad(set_to_none=...)`` was a ``TypeError``."""
    net = problem()
    optimizer = make(net)
    accumulate(net, 2)
    optimizer.step()
    optimizer.zero_grad(set_to_none=set_to_none)
    assert (net.weight.grad is None) == set_to_none
    accumulate(net, 2)
    optimizer.step()


def test_unused_and_frozen_parameters_count_for_nothing_and_may_join_later() -> None:
    """FairScale F4: a parameter without a gradient was an ``AttributeError`` inside backward()."""
    net, spare, frozen = problem(), nn.Linear(2, 2), nn.Linear(6, 3)
    frozen.requires_grad_(False)
    parameters = [*net.parameters(), *spare.parameters(), *frozen.parameters()]
    optimizer = AdaScale(torch.optim.SGD(parameters, lr=0.05, momentum=0.9), num_gradients_to_accumulate=2)
    alone = copy.deepcopy(net)
    plain = make(alone)
    torch.manual_seed(3)
    gains = train(net, optimizer, 3)
    torch.manual_seed(3)
    assert train(alone, plain, 3) == gains
    frozen.requires_grad_(True)
    train(lambda x: net(x) + frozen(x), optimizer, 1)
    gains = train(lambda x: net(x) + frozen(x), optimizer, 2)
    assert 1 < gains[-1] <= 2


def test_a_group_added_later_is_measured_too() -> None:
    net, late = problem(), nn.Linear(6, 3)
    optimizer = make(net)
    train(net, optimizer, 2)
    optimizer.add_param_group({"params": late.parameters(), "lr": 0.01})
    assert optimizer.gain(1) == 1.0
    train(lambda x: net(x) + late(x), optimizer, 2)
    assert 1 < optimizer.gain(1) <= 2


@pytest.mark.parametrize("rule", ["adascale", "auto"])
def test_a_group_added_before_a_step_changes_no_gain_whether_or_not_it_was_read(rule: str) -> None:
    gains = []
    for read in (True, False):
        net = problem()
        optimizer = AdaScale(torch.optim.Adam(net.parameters(), lr=0.01), num_gradients_to_accumulate=2, rule=rule)
        torch.manual_seed(1)
        train(net, optimizer, 7)
        accumulate(net, 2)
        if read:
            gains.append(optimizer.gain(0))
        optimizer.add_param_group({"params": nn.Linear(6, 3).parameters()})
        gains.append(optimizer.gain(0))
    assert gains[0] == gains[1] == gains[2] > 1


def test_unhooked_it_keeps_its_gain_and_continues_to_train() -> None:
    net = problem()
    optimizer = make(net)
    train(net, optimizer, 2)
    optimizer.unhook()
    gain, weight = optimizer.gain(), net.weight.detach().clone()
    train(net, optimizer, 1)
    assert optimizer.gain() == gain and not net.weight.equal(weight)


def test_dropped_it_leaves_no_hook_behind_so_an_optimizer_can_be_wrapped_again() -> None:
    """FairScale F17: wrapping an optimizer again left both sets of hooks."""
    net = problem()
    inner = torch.optim.SGD(net.parameters(), lr=0.05)
    first = AdaScale(inner, num_gradients_to_accumulate=2)
    gone = weakref.ref(first)
    train(net, first, 1)
    del first
    gc.collect()
    assert gone() is None and not net.weight._backward_hooks
    assert train(net, AdaScale(inner, num_gradients_to_accumulate=2), 1)[0] > 1


def test_the_wrapper_passes_each_argument_where_it_belongs() -> None:
    """FairScale F9: ``debias_ewma`` arrived as ``is_scaled_loss``."""
    net = problem()
    optimizer = AdaScaleWrapper(
        net.parameters(),
        num_gradients_to_accumulate=2,
        debias_ewma=False,
        is_scaled_loss=False,
        lr=0.05,
        nesterov=False,
    )
    own = optimizer.state_dict()["state"]["adascale"]
    assert (own["debias"], own["is_scaled_loss"]) == (False, False)
    assert isinstance(
        AdaScaleWrapper(net.parameters(), 1, 4.0, 0.5, 2, True, torch.optim.Adam)._optimizer, torch.optim.Adam
    )


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"scale": 0.5}, "scale"),
        ({"smoothing": 1.0}, "smoothing"),
        ({"num_gradients_to_accumulate": 0}, "num_gradients_to_accumulate"),
        ({"num_gradients_to_accumulate": 1}, "single_worker='differences'"),
        ({"world_size": 2}, "world_size"),
        ({"single_worker": "maybe"}, "single_worker"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        make(problem(), **arguments)


@pytest.mark.parametrize("call", ["zero_grad", "state_dict", "set_scale", "add_param_group", "load_state_dict"])
def test_in_the_middle_of_an_accumulation_nothing_is_changed_or_saved(call: str) -> None:
    net = problem()
    optimizer = make(net)
    state = optimizer.state_dict()
    accumulate(net, 1)
    arguments: dict[str, Any] = {
        "set_scale": (4.0,),
        "add_param_group": ({"params": [nn.Parameter(torch.zeros(1))]},),
        "load_state_dict": (state,),
    }
    with pytest.raises(LoopError, match="1 of 2 gradients"):
        getattr(optimizer, call)(*arguments.get(call, ()))


def test_a_closure_runs_before_the_gain_is_taken() -> None:
    net = problem()
    optimizer = make(net)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        accumulate(net, 2)
        return torch.tensor(3.0)

    for _ in range(3):
        assert optimizer.step(closure) == 3.0
    assert 1 < optimizer.gain() <= 2


def test_progress_is_the_sum_of_gains() -> None:
    """FairScale F20: scripts had to add up gains themselves."""
    net = problem()
    optimizer = make(net)
    assert sum(train(net, optimizer, 5)) == pytest.approx(optimizer.progress)


def test_a_loss_that_is_not_divided_is_noticed_when_the_gradients_are_not_either() -> None:
    net = problem()
    optimizer = make(net, is_scaled_loss=False)
    accumulate(net, 2, divide=False)
    with pytest.warns(UserWarning, match="scale_grad_by_num_grads_to_accum"):
        optimizer.step()
    optimizer.zero_grad()
    accumulate(net, 2, divide=False)
    optimizer.scale_grad_by_num_grads_to_accum()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    with pytest.raises(LoopError, match="is_scaled_loss"):
        make(net).scale_grad_by_num_grads_to_accum()


def test_clipping_before_the_step_does_not_change_what_was_measured() -> None:
    net = problem()
    optimizer = make(net)
    accumulate(net, 2)
    gain = optimizer.gain()
    nn.utils.clip_grad_norm_(net.parameters(), 0.01)
    assert optimizer.gain() == gain
    loss_of(net)
    optimizer.step()
    assert optimizer.gain() == gain


def test_every_path_by_which_scripts_import_it_leads_to_the_same_class() -> None:
    import swell.compat.fairscale as fairscale
    from swell.compat.fairscale.optim import adascale

    assert fairscale.optim.AdaScale is adascale.AdaScale is AdaScale
    assert fairscale.optim.AdaScaleWrapper is adascale.AdaScaleWrapper
    with pytest.raises(AttributeError, match="nn"):
        fairscale.nn  # noqa: B018


def test_one_worker_without_accumulation_raises_what_fairscale_raises() -> None:
    with pytest.raises(RuntimeError, match="one worker") as raised:
        AdaScale(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1))
    assert isinstance(raised.value, ConfigError)


def test_an_inner_optimizer_whose_zero_grad_takes_no_argument_works() -> None:
    class Old(torch.optim.SGD):
        def zero_grad(self) -> None:  # type: ignore[override]
            super().zero_grad()

    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = AdaScale(Old([parameter], lr=0.1), num_gradients_to_accumulate=2)
    for _ in range(2):
        (parameter.sum() / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
    assert parameter.grad is None
