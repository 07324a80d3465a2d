"""Gradients that stay in ``.grad`` between micro-batches survive a loop that clears them; changes are noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import swell
from swell.gradients.gradient_sum import GradientSum
from tests.job.scenario import Points, gradients_alone, largest_relative_error, make_model, mean_loss
from tests.reference import gradient_sum as slow


def make(dtype: torch.dtype = torch.float64) -> tuple[nn.Module, torch.optim.Optimizer, GradientSum]:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, GradientSum(optimizer)


@given(clearings=st.lists(st.booleans(), min_size=2, max_size=5), seed=st.integers(0, 99))
def test_a_zero_grad_between_micro_batches_loses_nothing(clearings: list[bool], seed: int) -> None:
    model, optimizer, sums = make()
    rows = torch.randn(len(clearings), 1, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = [torch.autograd.grad(model(row).sum(), list(model.parameters())) for row in rows]
    for number, (row, clears) in enumerate(zip(rows, clearings, strict=True)):
        if clears:
            optimizer.zero_grad()
        assert sums.follow()
        model(row).sum().backward()
        assert sums.leave(last=number == len(clearings) - 1)
    for index, parameter in enumerate(model.parameters()):
        total = slow.total(expected, index)
        assert total is not None and parameter.grad is not None
        torch.testing.assert_close(parameter.grad, total)


@pytest.mark.parametrize(
    "change",
    [
        lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
        lambda model, optimizer: nn.utils.clip_grad_norm_(model.parameters(), 1e-3),
        lambda model, optimizer: setattr(model[0].bias, "grad", torch.zeros(2, dtype=torch.float64)),
    ],
    ids=["zeroed", "clipped", "replaced"],
)
def test_a_change_of_values_between_micro_batches_is_noticed(change: Callable[[Any, Any], None]) -> None:
    model, optimizer, sums = make()
    model(torch.ones(1, 3, dtype=torch.float64)).sum().backward()
    assert sums.leave(last=False)
    change(model, optimizer)
    assert not sums.follow()
    sums.clear()
    model(torch.ones(1, 3, dtype=torch.float64)).sum().backward()
    assert not sums.leave(last=False)  # from now on they are taken out of the loop's reach


def test_narrow_gradients_are_not_added_up_where_they_are() -> None:
    model, _, sums = make(torch.bfloat16)
    model(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
    assert not sums.leave(last=False)
    assert sums.leave(last=True)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_job_gives_the_right_gradient_in_a_loop_that_clears_gradients(set_to_none: bool) -> None:
    points, model = Points(24), make_model()
    job = swell.Job(batch=8, micro=3, rule="constant", statistics=False, progress=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    job.wrap(model, optimizer)
    seen: list[list[Tensor]] = []

    def note(inner: Any, args: Any, kwargs: Any) -> None:
        seen.append([p.grad.clone() for p in model.parameters() if p.grad is not None])

    optimizer.register_step_pre_hook(note)
    steps: list[list[int]] = []
    current: list[int] = []
    for x, y, index in job.loader(points):
        if len(current) >= 8:  # the step was given up: its samples come again
            current = []
        current += index.tolist()
        optimizer.zero_grad(set_to_none=set_to_none)
        job.backward(mean_loss(model, x, y))
        if job.step():
            steps.append(current)
            current = []
    assert sorted(sample for step in steps for sample in step) == list(range(24))
    for mine, alone in zip(seen, gradients_alone(points, steps), strict=True):
        assert largest_relative_error(mine, alone) < 1e-12
