"""A step's loss is the weighted sum of its parts, and is known to stay where it is only where it does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from swell.job.step_loss import StepLoss, _has_own_memory


@given(parts=st.lists(st.tuples(st.floats(-10, 10, width=32), st.floats(0.1, 1)), max_size=5))
def test_the_mean_is_the_weighted_sum(parts: list[tuple[float, float]]) -> None:
    loss = StepLoss()
    for value, weight in parts:
        loss.add(torch.tensor(value), weight)
    assert loss.on_host
    assert loss.mean() == pytest.approx(sum(value * weight for value, weight in parts))
    loss.clear()
    assert loss.mean() == 0.0


def a_loss(kind: str) -> Tensor:
    layer, x = nn.Linear(2, 2), torch.ones(3, 2)
    if kind == "operation":
        return layer(x).square().mean()
    if kind == "view":
        return layer(x).square().mean().reshape(1)[0]
    if kind == "written":
        return layer(x).square().mean().mul_(0.5)
    compiled = torch.compile(lambda: layer(x).square().mean(), backend="aot_eager")
    return compiled() * 2 if kind == "after compiled" else compiled()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler
@pytest.mark.parametrize(
    ("kind", "own"),
    [("operation", True), ("after compiled", True), ("view", False), ("written", False), ("compiled", False)],
)
def test_only_the_result_of_a_plain_operation_has_memory_of_its_own(kind: str, own: bool) -> None:
    assert _has_own_memory(a_loss(kind)) is own
