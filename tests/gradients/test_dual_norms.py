"""Reach and spread by parameter group are those of decompositions in float64; a pair is the first two of a step."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from swell.gradients import dual_norms
from swell.gradients.dual_norms import DualNorm, DualNorms
from swell.gradients.dual_pair import DualPair
from swell.gradients.gradient_sum import GradientSum
from tests.reference.dual_norms import reach_and_spread

SHAPES = [(), (7,), (4, 6), (6, 4), (3, 2, 5), (0, 3), (4, 6)]
NORMS: list[DualNorm] = ["absolute", "nuclear"]


def make(seed: int, dtype: torch.dtype = torch.float64, shapes: Any = SHAPES) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def groups_of(parameters: list[Tensor], *sizes: int) -> list[dict[str, Any]]:
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [{"params": parameters[start : start + size]} for start, size in zip(starts, sizes, strict=True)]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("together", [1, 2**22])
def test_every_group_has_the_figures_of_its_gradients(
    norm: DualNorm, dtype: torch.dtype, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dual_norms, "TOGETHER", together)
    first, second = make(1, dtype), make(2, dtype)
    found = DualNorms(groups_of(first, 3, 4), norm).compare(first, second, weights=(1.0, 1.0))
    for number, part in enumerate((slice(0, 3), slice(3, 7))):
        reach, spread = reach_and_spread(first[part], second[part], norm)
        assert float(found[0, number]) == pytest.approx(reach, rel=0.01, abs=0.03 * spread)
        assert float(found[1, number]) == pytest.approx(spread, rel=0.01)


@given(weights=st.tuples(st.floats(1e-3, 1), st.floats(1e-3, 1)), norm=st.sampled_from(NORMS))
def test_weights_of_losses_are_divided_out(weights: tuple[float, float], norm: DualNorm) -> None:
    first, second = make(1), make(2)
    norms = DualNorms(groups_of(first, 7), norm)
    weighted = [[weight * gradient for gradient in each] for weight, each in zip(weights, (first, second), strict=True)]
    torch.testing.assert_close(
        norms.compare(*weighted, weights=weights), norms.compare(first, second, weights=(1.0, 1.0))
    )


@given(scale=st.floats(1e-3, 1e3), norm=st.sampled_from(NORMS))
def test_figures_go_with_the_gradients_unit(scale: float, norm: DualNorm) -> None:
    first, second = make(1), make(2)
    norms = DualNorms(groups_of(first, 7), norm)
    scaled = [[scale * gradient for gradient in each] for each in (first, second)]
    torch.testing.assert_close(
        norms.compare(*scaled, weights=(1.0, 1.0)), scale * norms.compare(first, second, weights=(1.0, 1.0))
    )


@pytest.mark.parametrize("norm", NORMS)
def test_a_missing_gradient_counts_as_zero_and_a_sparse_one_as_dense(norm: DualNorm) -> None:
    first, second = make(1), make(2)
    zeros = [torch.zeros_like(g) for g in first]
    norms = DualNorms(groups_of(first, 7), norm)
    missing = norms.compare([None] * 7, second, weights=(1.0, 1.0))
    torch.testing.assert_close(missing, norms.compare(zeros, second, weights=(1.0, 1.0)))
    assert float(missing[0, 0]) == 0 and not norms.compare([None] * 7, [None] * 7, weights=(1.0, 1.0)).any()
    sparse = [g.to_sparse(1) if g.ndim == 2 and g.numel() else g for g in first]
    torch.testing.assert_close(
        norms.compare(sparse, second, weights=(1.0, 1.0)), norms.compare(first, second, weights=(1.0, 1.0))
    )


def test_groups_that_muon_leaves_to_another_rule_have_the_sum_of_absolute_values() -> None:
    first, second = make(1), make(2)
    groups = [{"params": first, "use_muon": False}]
    found = DualNorms(groups, "nuclear").compare(first, second, weights=(1.0, 1.0))
    reach, spread = reach_and_spread(first, second, "absolute")
    assert found.flatten().tolist() == pytest.approx([reach, spread])


# The first two micro-gradients of a step


def summed(sizes: list[int], weights: list[float], *, measured: bool = True) -> tuple[list[float], GradientSum]:
    """The figures after micro-batches of these sizes and loss weights; each mean gradient is ``make(number)``."""
    parameters = [value.requires_grad_() for value in make(0)]
    optimizer = torch.optim.SGD(groups_of(parameters, 3, 4), lr=0.1)
    gradients = GradientSum(optimizer)
    gradients.pair = DualPair("nuclear", optimizer.param_groups)
    for number, (size, weight) in enumerate(zip(sizes, weights, strict=True), start=1):
        for parameter, gradient in zip(parameters, make(number), strict=True):
            parameter.grad = weight * gradient
        gradients.take(multiplier=weight, measure=measured, preconditioned=False, samples=size)
    return gradients.pair.figures(torch.device("cpu")).tolist(), gradients


def expected(one: int, two: int) -> list[float]:
    both = [reach_and_spread(make(1)[part], make(2)[part], "nuclear") for part in (slice(0, 3), slice(3, 7))]
    root = math.sqrt(2 * one * two / (one + two))
    sizes = [(math.sqrt(one) + math.sqrt(two)) / 2, 1.0]
    return [*(reach for reach, _ in both), *(root * spread for _, spread in both), *sizes]


@pytest.mark.parametrize(
    ("sizes", "weights"), [([4, 4], [0.5, 0.5]), ([7, 6], [7 / 13, 6 / 13]), ([2, 3, 4], [2.0, 0.7, 5])]
)
def test_the_first_two_micro_gradients_are_compared_whatever_comes_after(
    sizes: list[int], weights: list[float]
) -> None:
    found, gradients = summed(sizes, weights)
    assert found == pytest.approx(expected(*sizes[:2]), rel=1e-3, abs=1e-2)
    gradients.clear()
    assert gradients.pair is not None and not gradients.pair.figures(torch.device("cpu")).any()


@pytest.mark.parametrize(("sizes", "weights"), [([], []), ([4], [1.0]), ([4, 4], [0.0, 1.0]), ([4, 4], [1.0, 0.0])])
def test_where_there_are_no_two_with_a_weight_nothing_is_compared(sizes: list[int], weights: list[float]) -> None:
    assert not any(summed(sizes, weights)[0])


def test_a_step_that_is_not_measured_compares_nothing() -> None:
    assert not any(summed([4, 4], [0.5, 0.5], measured=False)[0])


def test_gradients_that_are_packed_bucket_by_bucket_have_the_same_figures() -> None:
    whole, _ = summed([4, 3], [0.5, 0.5])
    _, gradients = summed([4], [0.5])
    assert gradients.pair is not None
    for parameter, gradient in zip(gradients.parameters, make(2), strict=True):
        parameter.grad = 0.5 * gradient
    for indices in ([6, 5, 4], [3, 2], [1, 0]):
        views = [torch.zeros_like(gradients.parameters[index]) for index in indices]
        gradients.pack(indices, views, weight=0.5, measure=True, preconditioned=False, samples=3)
    assert gradients.pair.figures(torch.device("cpu")).tolist() == pytest.approx(whole)


def test_parameters_that_are_added_are_compared_from_the_next_step_on() -> None:
    _, gradients = summed([4], [1.0])
    gradients._optimizer.add_param_group({"params": [torch.zeros(2, requires_grad=True)]})
    gradients.clear()
    assert gradients.pair is not None and len(gradients.pair.figures(torch.device("cpu"))) == 2 * 3 + 2
