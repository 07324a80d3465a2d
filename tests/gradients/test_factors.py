"""Factors hold for one step of the optimizer: its base values come back, and Adam's bias correction stays right."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import Optimizer

from swell.core.types import Factors
from swell.gradients.factors import BiasClock, scaled
from tests.reference.rules import SlowAdam

powers = st.floats(0.1, 20.0)
histories = st.lists(powers | st.just(1.0), min_size=1, max_size=25)


def make(kind: str = "Adam", **options: Any) -> tuple[nn.Parameter, Optimizer]:
    parameter = nn.Parameter(torch.tensor([0.5, -2.0], dtype=torch.float64))
    return parameter, getattr(torch.optim, kind)([parameter], **{"lr": 0.1, **options})


def gradient(number: int) -> Tensor:
    return torch.tensor([math.sin(number + 1), 3 * math.cos(number)], dtype=torch.float64)


def step(parameter: nn.Parameter, optimizer: Optimizer, clock: BiasClock, factors: Factors, number: int) -> None:
    parameter.grad = gradient(number)
    with scaled(optimizer, [factors], clock):
        optimizer.step()


class Twin:
    """Adam that keeps the products of its betas, one number at a time."""

    def __init__(self, parameter: Tensor) -> None:
        self.values = parameter.tolist()
        self._adams = [SlowAdam() for _ in self.values]

    def step(self, number: int, factors: Factors) -> None:
        betas = (0.9**factors.beta_power, 0.999**factors.beta_power)
        for index, (adam, slope) in enumerate(zip(self._adams, gradient(number).tolist(), strict=True)):
            self.values[index] += adam.step(slope, betas=betas, lr=0.1 * factors.lr, eps=1e-8 * factors.eps)


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"foreach": False}, {"amsgrad": False, "fused": True}])
@given(history=histories)
def test_adam_under_changing_betas_is_adam_that_keeps_their_product(
    options: dict[str, Any], history: list[float]
) -> None:
    parameter, optimizer = make(**options)
    twin, clock = Twin(parameter), BiasClock()
    for number, power in enumerate(history):
        factors = Factors(lr=1 + power / 7, eps=2.0, beta_power=power)
        step(parameter, optimizer, clock, factors, number)
        twin.step(number, factors)
        assert parameter.tolist() == pytest.approx(twin.values, abs=1e-5)  # torch counts steps in float32
        assert float(optimizer.state[parameter]["step"]) == number + 1  # what others read is how often it stepped


@given(history=histories, cut=st.integers(0, 24))
def test_a_resumed_clock_goes_on_as_if_nothing_had_happened(history: list[float], cut: int) -> None:
    parameter, optimizer = make()
    clock = BiasClock()
    twin = Twin(parameter)
    for number, power in enumerate(history):
        if number == cut:
            saved = copy.deepcopy((optimizer.state_dict(), clock.state_dict([parameter])))
            values = parameter.detach().clone()
            parameter, optimizer = make()
            with torch.no_grad():
                parameter.copy_(values)
            optimizer.load_state_dict(saved[0])
            clock = BiasClock()
            clock.load_state_dict(saved[1], [parameter])
        step(parameter, optimizer, clock, Factors(beta_power=power), number)
        twin.step(number, Factors(beta_power=power))
    assert parameter.tolist() == pytest.approx(twin.values, abs=1e-5)


def test_while_every_power_is_one_nothing_is_kept_and_no_bit_differs() -> None:
    parameter, optimizer = make()
    plain, plain_optimizer = make()
    clock = BiasClock()
    for number in range(5):
        step(parameter, optimizer, clock, Factors(), number)
        plain.grad = gradient(number)
        plain_optimizer.step()
    assert torch.equal(parameter, plain)
    assert clock.state_dict([parameter]) == {}


def test_a_parameter_that_rests_in_a_step_does_not_count_it() -> None:
    used, resting = (nn.Parameter(torch.ones(1, dtype=torch.float64)) for _ in range(2))
    optimizer = torch.optim.Adam([used, resting], lr=0.1)
    clock = BiasClock()
    for power in (2.0, 3.0):
        used.grad, resting.grad = torch.ones_like(used), None
        with scaled(optimizer, [Factors(beta_power=power)], clock):
            optimizer.step()
    assert clock.state_dict([used, resting]) == {"0": 5.0}


def test_plain_steps_before_the_first_power_count_as_one_each() -> None:
    parameter, optimizer = make()
    clock = BiasClock()
    for number, power in enumerate([1.0, 1.0, 1.0, 4.0]):
        step(parameter, optimizer, clock, Factors(beta_power=power), number)
    assert clock.state_dict([parameter]) == {"0": 7.0}


@pytest.mark.parametrize(
    ("kind", "options", "factors", "during"),
    [
        ("SGD", {"momentum": 0.9}, Factors(lr=3.0, momentum_power=2.0), {"lr": 0.3, "momentum": 0.81}),
        ("SGD", {"momentum": 0.0}, Factors(momentum_power=2.0, beta_power=2.0), {"lr": 0.1, "momentum": 0.0}),
        ("AdamW", {}, Factors(eps=4.0, weight_decay=0.5), {"eps": 4e-8, "weight_decay": 0.005}),
        ("AdamW", {"betas": (0.9, 0.99)}, Factors(beta_power=2.0), {"betas": (0.81, 0.9801)}),
        ("RMSprop", {"alpha": 0.9}, Factors(beta_power=2.0), {"alpha": 0.81}),
        ("Adadelta", {"rho": 0.9}, Factors(beta_power=3.0), {"rho": 0.729}),
        ("ASGD", {"alpha": 0.75}, Factors(beta_power=3.0), {"alpha": 0.75}),  # its alpha is no decay rate
        ("Adafactor", {"eps": (None, 1e-3)}, Factors(eps=3.0), {"eps": (None, 1e-3)}),  # a pair has no one factor
    ],
)
def test_each_factor_changes_its_value_in_the_step_and_none_after_it(
    kind: str, options: dict[str, Any], factors: Factors, during: dict[str, Any]
) -> None:
    _, optimizer = make(kind, **options)
    before = dict(optimizer.param_groups[0])
    with scaled(optimizer, [factors], BiasClock()):
        group = optimizer.param_groups[0]
        for key, value in during.items():
            assert group[key] == pytest.approx(value), key
        assert group.keys() == before.keys()
    assert optimizer.param_groups[0] == before


def test_each_group_has_its_own_factors() -> None:
    first, second = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([{"params": [first]}, {"params": [second], "lr": 0.5}], lr=0.1)
    with scaled(optimizer, [Factors(lr=2.0), Factors(lr=3.0)], BiasClock()):
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.2, 1.5])
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.5]


def test_base_values_come_back_when_the_step_raises() -> None:
    _, optimizer = make()
    before = dict(optimizer.param_groups[0])
    with (
        pytest.raises(ZeroDivisionError),
        scaled(optimizer, [Factors(lr=2.0, eps=3.0, beta_power=4.0)], BiasClock()),
    ):
        raise ZeroDivisionError
    assert optimizer.param_groups[0] == before


def test_a_learning_rate_that_is_a_tensor_comes_back_as_the_same_tensor() -> None:
    rate = torch.tensor(0.1)
    _, optimizer = make(lr=rate)
    with scaled(optimizer, [Factors(lr=2.0)], BiasClock()):
        assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.2)
    assert optimizer.param_groups[0]["lr"] is rate and float(rate) == pytest.approx(0.1)
