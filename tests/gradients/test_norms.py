"""Squared norms by parameter group are those of one long vector in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from swell.gradients.norms import GroupNorms, squared_norm
from tests.devices import needs_cuda
from tests.reference.gradient_sum import squared_norm as slow_squared_norm

shapes = st.lists(st.integers(0, 4), max_size=2).map(tuple)
gradients = st.lists(
    st.tuples(shapes, st.sampled_from([torch.float32, torch.float64, torch.bfloat16]), st.booleans()), max_size=6
)


def make(drawn: list[tuple[tuple[int, ...], torch.dtype, bool]]) -> tuple[list[Tensor], list[Tensor | None]]:
    """Parameters of these shapes and types, and a gradient for those that have one."""
    generator = torch.Generator().manual_seed(len(drawn))
    values = [torch.randn(shape, generator=generator).to(dtype) for shape, dtype, _ in drawn]
    return values, [value if present else None for value, (_, _, present) in zip(values, drawn, strict=True)]


@given(drawn=st.lists(gradients, max_size=3))
def test_each_group_has_the_squared_norm_of_its_gradients(
    drawn: list[list[tuple[tuple[int, ...], torch.dtype, bool]]],
) -> None:
    parameters, values = make([each for group in drawn for each in group])
    sizes = [len(group) for group in drawn]
    if not sizes:
        return
    squares = GroupNorms(parameters, sizes).squares(values)
    assert squares.shape == (len(sizes),)
    for number, size in enumerate(sizes):
        start = sum(sizes[:number])
        assert float(squares[number]) == pytest.approx(slow_squared_norm(values[start : start + size]), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_does_not_overflow_nor_round(dtype: torch.dtype) -> None:
    gradient = torch.full((1001,), 200.0, dtype=dtype)  # its squared norm is far above float16's largest number
    assert float(squared_norm([gradient])) == pytest.approx(1001 * 200.0**2, rel=1e-6)


def test_rows_of_a_sparse_gradient_that_come_twice_are_added_before_they_are_squared() -> None:
    rows, values = torch.tensor([[0, 0, 2]]), torch.tensor([[1.0], [2.0], [5.0]])
    gradient = torch.sparse_coo_tensor(rows, values, (4, 1), check_invariants=True)
    assert float(squared_norm([gradient])) == pytest.approx(3.0**2 + 5.0**2)


def test_missing_gradients_count_as_zero() -> None:
    norms = GroupNorms([torch.ones(2), torch.ones(2)], [1, 1])
    assert norms.squares([None, torch.ones(2)]).tolist() == pytest.approx([0.0, 2.0])
    assert norms.squares([None, None]).tolist() == [0.0, 0.0]
    assert float(squared_norm([])) == 0.0


def test_gradients_are_left_as_they_are() -> None:
    gradient = torch.tensor([3.0, -4.0])
    squared_norm([gradient])
    assert gradient.tolist() == [3.0, -4.0]


@needs_cuda
def test_small_and_large_gradients_on_an_accelerator_are_measured_together_and_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    values: list[Tensor | None] = [torch.randn(n, generator=generator) for n in (3, 2**20 + 1, 7, 2**21)]
    on_device = [None if value is None else value.cuda() for value in values]
    squares = GroupNorms([v for v in on_device if v is not None], [2, 2]).squares(on_device)
    assert squares.device.type == "cuda"
    assert squares.tolist() == pytest.approx([slow_squared_norm(values[:2]), slow_squared_norm(values[2:])], rel=1e-5)
