"""Two consecutive gradients are compared exactly when they belong together, and the figures are a twin's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from swell.gradients.gradient_sum import GradientSum
from swell.gradients.pairs import GradientPairs
from swell.gradients.preconditioner import WARM_UP_STEPS
from tests.reference import gradient_sum as slow
from tests.reference.adaptive_metric import divided

GRADIENTS = st.lists(st.sampled_from(["absent", "dense", "sparse"]), min_size=3, max_size=3)


def make() -> tuple[list[nn.Parameter], GradientPairs]:
    parameters = [nn.Parameter(torch.zeros(4, 2, dtype=torch.float64)) for _ in range(3)]
    sums = GradientSum(torch.optim.SGD([{"params": parameters[:1]}, {"params": parameters[1:]}], lr=0.1))
    return parameters, GradientPairs(sums, lambda step: step % 2 + 1)


def gradients_of(kinds: list[str], seed: int) -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(4, 2, generator=generator, dtype=torch.float64) for _ in kinds]
    return [
        None if kind == "absent" else value.to_sparse(1) if kind == "sparse" else value
        for kind, value in zip(kinds, values, strict=True)
    ]


def hand_over(parameters: list[nn.Parameter], gradients: list[Tensor | None]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = None if gradient is None else gradient.clone()


def by_group(gradients: list[Tensor | None]) -> list[float]:
    return [slow.squared_norm(gradients[:1]), slow.squared_norm(gradients[1:])]


def half_sum(one: list[Tensor | None], other: list[Tensor | None]) -> list[Tensor | None]:
    totals = [slow.total([one, other], index) for index in range(len(one))]
    return [None if total is None else total / 2 for total in totals]


@given(first=GRADIENTS, second=GRADIENTS)
def test_the_figures_are_the_mean_square_of_two_gradients_and_the_square_of_their_mean(
    first: list[str], second: list[str]
) -> None:
    parameters, pairs = make()
    one, other = gradients_of(first, 1), gradients_of(second, 2)
    hand_over(parameters, one)
    assert pairs.see(step=0, samples=0, batch=8, preconditioned=False) is None
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.zero_()  # the optimizer's to use: what is kept is a copy
    hand_over(parameters, other)
    figures = pairs.see(step=1, samples=8, batch=8, preconditioned=False)
    small = [(a + b) / 2 for a, b in zip(by_group(one), by_group(other), strict=True)]
    assert figures is not None
    assert figures.tolist() == pytest.approx([*small, *by_group(half_sum(one, other))], rel=1e-6, abs=1e-12)


def test_looking_at_a_gradient_leaves_it_as_it_is() -> None:
    parameters, pairs = make()
    for step in range(2):
        gradients = gradients_of(["dense"] * 3, step)
        hand_over(parameters, gradients)
        pairs.see(step=step, samples=8 * step, batch=8, preconditioned=False)
        assert all(torch.equal(p.grad, g) for p, g in zip(parameters, gradients, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ({"step": 1, "samples": 8, "batch": 16}, "another batch"),
        ({"step": 1, "samples": 16, "batch": 8}, "samples between them"),
        ({"step": 1, "samples": 0, "batch": 8}, "the same samples again"),
        ({"step": 2, "samples": 8, "batch": 8}, "the first of the next pair"),
    ],
)
def test_steps_that_are_no_pair_are_not_compared(second: dict[str, int], why: str) -> None:
    parameters, pairs = make()
    hand_over(parameters, gradients_of(["dense"] * 3, 1))
    pairs.see(step=0, samples=0, batch=8, preconditioned=False)
    assert pairs.see(**second, preconditioned=False) is None, why


def test_each_gradient_is_in_one_pair_only() -> None:
    parameters, pairs = make()
    compared = []
    for step in range(6):
        hand_over(parameters, gradients_of(["dense"] * 3, step))
        compared.append(pairs.see(step=step, samples=8 * step, batch=8, preconditioned=False) is not None)
    assert compared == [False, True] * 3


def test_a_second_step_that_is_done_again_is_not_compared_again() -> None:
    parameters, pairs = make()
    for step, samples, completes in ((0, 0, False), (1, 8, True), (1, 8, False)):
        hand_over(parameters, gradients_of(["dense"] * 3, step))
        figures = pairs.see(step=step, samples=samples, batch=8, preconditioned=False)
        assert (figures is not None) == completes


def test_a_pair_is_broken_off_when_its_first_gradient_is_forgotten_or_parameters_are_added() -> None:
    parameters = [nn.Parameter(torch.zeros(4, 2, dtype=torch.float64)) for _ in range(3)]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    sums = GradientSum(optimizer)
    pairs = GradientPairs(sums, lambda step: step % 2 + 1)
    hand_over(parameters, gradients_of(["dense"] * 3, 1))
    pairs.see(step=0, samples=0, batch=8, preconditioned=False)
    pairs.clear()
    assert pairs.see(step=1, samples=8, batch=8, preconditioned=False) is None
    pairs.see(step=2, samples=16, batch=8, preconditioned=False)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    sums.clear()
    assert pairs.see(step=3, samples=24, batch=8, preconditioned=False) is None


def test_both_gradients_are_measured_in_the_metric_of_the_second_step() -> None:
    parameters = [nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(2)]
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    sums = GradientSum(optimizer)
    pairs = GradientPairs(sums, lambda step: step % 2 + 1)
    torch.manual_seed(3)
    kept: list[list[Tensor | None]] = []
    for step in range(WARM_UP_STEPS + 1):
        kept.append([torch.randn_like(p) for p in parameters])
        hand_over(parameters, kept[-1])
        figures = pairs.see(step=step, samples=step, batch=1, preconditioned=step >= WARM_UP_STEPS)
        if step < WARM_UP_STEPS:
            optimizer.step()
            sums.preconditioner.stepped()
    group = optimizer.param_groups[0]
    one, other = (
        [divided(g, optimizer.state[p], group) for g, p in zip(gradients, parameters, strict=True) if g is not None]
        for gradients in kept[-2:]
    )
    small = (slow.squared_norm(one) + slow.squared_norm(other)) / 2
    big = slow.squared_norm(half_sum(list(one), list(other)))
    assert figures is not None
    assert figures.tolist()[1::2] == pytest.approx([small, big], rel=1e-6)
