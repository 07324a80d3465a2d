"""Polar factors by Newton-Schulz are those of a singular value decomposition, within a few per cent."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from swell.gradients.polar import polar_factors
from tests.reference.dual_norms import polar


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_near(found: Tensor, matrix: Tensor) -> None:
    """Their nuclear norms agree within 1 %, and every element within 3 % of the largest."""
    exact = polar(matrix)
    assert float((found * matrix).sum()) == pytest.approx(float((exact * matrix).sum()), rel=0.01)
    assert float((found - exact).abs().max()) < 0.03


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (8, 30), (30, 8), (48, 64)])
def test_wide_and_tall_matrices_have_the_factor_of_a_decomposition(shape: tuple[int, int]) -> None:
    assert_near(polar_factors(random(*shape)), random(*shape))


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_directions_that_a_matrix_lacks_are_not_made_up(rank: int) -> None:
    matrix = random(20, rank) @ random(rank, 12, seed=1)
    found = polar_factors(matrix)
    assert_near(found, matrix)
    assert float(found.square().sum()) == pytest.approx(rank, rel=0.02)


def test_a_zero_matrix_has_a_zero_factor() -> None:
    assert not polar_factors(torch.zeros(3, 4, 5)).any()


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6, 1e30])
def test_the_scale_does_not_matter(scale: float) -> None:
    torch.testing.assert_close(polar_factors(scale * random(6, 9)), polar_factors(random(6, 9)), rtol=1e-3, atol=1e-3)


def test_narrow_types_are_factored_in_float32() -> None:
    narrow = random(10, 16, dtype=torch.bfloat16)
    assert polar_factors(narrow).dtype == torch.float32
    assert_near(polar_factors(narrow), narrow.float())


def test_a_stack_is_factored_matrix_by_matrix() -> None:
    stack = torch.stack([random(5, 7), 1e5 * random(5, 7, seed=1), torch.zeros(5, 7)])
    each = torch.stack([polar_factors(matrix) for matrix in stack])
    torch.testing.assert_close(polar_factors(stack), each, rtol=1e-3, atol=1e-3)


def test_a_number_that_is_not_finite_is_not_hidden() -> None:
    matrix = random(3, 3)
    matrix[0, 0] = torch.nan
    assert polar_factors(matrix).isnan().any()
