"""After a change of the batch, Adam's second moment is what it would be had every step had the new batch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import SGD, Adam, AdamW, NAdam, RMSprop

import swell.gradients.second_moment as module
from swell.gradients.second_moment import follow_batch

BETAS = (0.9, 0.999)
sizes = st.integers(1, 4096)
numbers = st.lists(st.tuples(st.floats(-3, 3), st.floats(1e-6, 9)), min_size=1, max_size=5)


def with_state(firsts: list[float], seconds: list[float], *, steps: int, amsgrad: bool = False) -> Adam:
    parameter = torch.zeros(len(firsts), dtype=torch.float64, requires_grad=True)
    optimizer = Adam([parameter], betas=BETAS, amsgrad=amsgrad)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = optimizer.state[parameter]
    state["exp_avg"].copy_(torch.tensor(firsts, dtype=torch.float64))
    state["exp_avg_sq"].copy_(torch.tensor(seconds, dtype=torch.float64))
    state["step"].fill_(steps)
    if amsgrad:
        state["max_exp_avg_sq"].copy_(torch.tensor(seconds, dtype=torch.float64) * 2)
    return optimizer


def second_moment(optimizer: Any, key: str = "exp_avg_sq") -> list[float]:
    return [float(value) for state in optimizer.state.values() for value in state[key].flatten()]


def carried_over(first: float, second: float, *, before: int, after: int, steps: int) -> float:
    """The slow twin: correct for the bias, tell signal from noise, let the noise go with 1 / batch."""
    first, second = first / (1 - BETAS[0] ** steps), second / (1 - BETAS[1] ** steps)
    signal = first**2
    result = second if signal > second else signal + (second - signal) * before / after
    return result * (1 - BETAS[1] ** steps)


@given(values=numbers, before=sizes, after=sizes, steps=st.integers(5, 3000), amsgrad=st.booleans())
def test_noise_goes_with_the_batch_and_the_signal_stays(
    values: list[tuple[float, float]], before: int, after: int, steps: int, amsgrad: bool
) -> None:
    firsts, seconds = [list(column) for column in zip(*values, strict=True)]
    optimizer = with_state(firsts, seconds, steps=steps, amsgrad=amsgrad)
    follow_batch(optimizer, before=before, after=after)
    where = {"before": before, "after": after, "steps": steps}
    expected = [carried_over(first, second, **where) for first, second in values]
    assert second_moment(optimizer) == pytest.approx(expected, rel=1e-9)
    if amsgrad:
        expected = [carried_over(first, 2 * second, **where) for first, second in values]
        assert second_moment(optimizer, "max_exp_avg_sq") == pytest.approx(expected, rel=1e-9)


@given(values=numbers, before=sizes, after=sizes, steps=st.integers(5, 3000))
def test_going_there_and_back_changes_nothing(
    values: list[tuple[float, float]], before: int, after: int, steps: int
) -> None:
    firsts, seconds = [list(column) for column in zip(*values, strict=True)]
    optimizer = with_state(firsts, seconds, steps=steps)
    follow_batch(optimizer, before=before, after=after)
    follow_batch(optimizer, before=after, after=before)
    assert second_moment(optimizer) == pytest.approx(seconds, rel=1e-6)


@pytest.mark.parametrize("make", [Adam, AdamW, NAdam])
def test_it_is_the_second_moment_that_the_new_batch_would_have_given(make: Any) -> None:
    """Half of the elements are noise, half are signal; 40 is where a growth from 4 goes."""
    generator = torch.Generator().manual_seed(0)

    def trained(batch: int, steps: int) -> Any:
        parameter = torch.zeros(2000, requires_grad=True)
        optimizer = make([parameter], lr=0.0)
        signal = torch.cat([torch.zeros(1000), torch.full((1000,), 3.0)])
        for _ in range(steps):
            parameter.grad = signal + torch.randn(2000, generator=generator) / math.sqrt(batch)
            optimizer.step()
        return optimizer

    grown, large = trained(4, 400), trained(40, 400)
    follow_batch(grown, before=4, after=40)
    noise, signal = torch.tensor(second_moment(grown)).split(1000)
    noise_at_large, signal_at_large = torch.tensor(second_moment(large)).split(1000)
    assert 1.2 < noise.mean() / noise_at_large.mean() < 1.6  # a tenth, and a twentieth that the first moment keeps
    assert signal.mean() / signal_at_large.mean() == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("make", [lambda p: SGD(p, lr=0.1, momentum=0.9), lambda p: RMSprop(p)])
def test_an_optimizer_without_both_moments_is_left_alone(make: Any) -> None:
    parameter = torch.zeros(3, requires_grad=True)
    optimizer = make([parameter])
    for _ in range(9):
        parameter.grad = torch.randn(3)
        optimizer.step()
    states = {key: value.clone() for key, value in optimizer.state[parameter].items()}
    follow_batch(optimizer, before=8, after=64)
    assert all(torch.equal(value, states[key]) for key, value in optimizer.state[parameter].items())


@pytest.mark.parametrize(
    ("key", "other"),
    [("step", torch.tensor(4.0)), ("exp_avg_sq", torch.ones(1)), ("exp_avg_sq", torch.ones(2, dtype=torch.uint8))],
)
def test_second_moments_of_few_steps_of_blocks_or_quantised_are_left_alone(key: str, other: torch.Tensor) -> None:
    optimizer = with_state([0.1, 0.2], [1.0, 2.0], steps=50)
    (state,) = optimizer.state.values()
    state[key] = other
    before = state["exp_avg_sq"].clone()
    follow_batch(optimizer, before=8, after=64)
    assert torch.equal(state["exp_avg_sq"], before)


def test_three_betas_mean_something_else() -> None:
    optimizer = with_state([0.1], [1.0], steps=50)
    optimizer.param_groups[0]["betas"] = (0.98, 0.92, 0.99)  # Adan's
    follow_batch(optimizer, before=8, after=64)
    assert second_moment(optimizer) == [1.0]


@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=8), together=st.integers(1, 12))
def test_in_whatever_portions_every_parameter_is_carried_over_once(lengths: list[int], together: int) -> None:
    parameters = [torch.zeros(length, requires_grad=True) for length in lengths]
    optimizer, once = Adam(parameters, betas=BETAS), []
    for parameter in parameters:
        parameter.grad = torch.linspace(-1, 2, len(parameter))
    for _ in range(6):
        optimizer.step()
    for state in optimizer.state.values():
        state["exp_avg_sq"].mul_(4)
        signal = state["exp_avg"].double() ** 2 * (1 - BETAS[1] ** 6) / (1 - BETAS[0] ** 6) ** 2
        second = state["exp_avg_sq"].double()
        once += (second + (second - signal).clamp(min=0) * (8 / 32 - 1)).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_TOGETHER", together)
        follow_batch(optimizer, before=8, after=32)
    assert second_moment(optimizer) == pytest.approx(once, rel=1e-5, abs=1e-9)
