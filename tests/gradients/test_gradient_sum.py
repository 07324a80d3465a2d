"""One step's gradient is the sum of its micro-gradients, whatever kinds they are of; nothing is left in between."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from swell.gradients.gradient_sum import ABSENT, DENSE, SPARSE, GradientSum
from swell.gradients.norms import squares_of
from tests.reference import gradient_sum as slow

SHAPES = ((3,), (2, 2), (4, 2), (1,))
SIZES = (1, 3)  # parameters of each of the two groups
MicroBatch = tuple[list[str], float, int]  # the kind of each parameter's gradient, the weight of the loss, a seed

kinds = st.lists(st.sampled_from([ABSENT, DENSE, SPARSE]), min_size=len(SHAPES), max_size=len(SHAPES))
micro_batches = st.tuples(kinds, st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.integers(0, 999))
steps = st.lists(micro_batches, max_size=5)


def make(dtype: torch.dtype = torch.float64) -> tuple[list[nn.Parameter], GradientSum]:
    parameters = [nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in SHAPES]
    groups = [{"params": parameters[: SIZES[0]]}, {"params": parameters[SIZES[0] :]}]
    return parameters, GradientSum(torch.optim.SGD(groups, lr=0.1))


def gradients_of(micro_batch: MicroBatch) -> list[Tensor | None]:
    """Whole numbers, so that sums are exact; sparse ones have rows twice."""
    codes, _, seed = micro_batch
    generator = torch.Generator().manual_seed(seed)
    result: list[Tensor | None] = []
    for code, shape in zip(codes, SHAPES, strict=True):
        dense = torch.randint(-8, 9, shape, generator=generator).double()
        result.append(None if code == ABSENT else dense if code == DENSE else twice(dense))
    return result


def twice(dense: Tensor) -> Tensor:
    rows = torch.arange(len(dense)).repeat(2).view(1, -1)
    return torch.sparse_coo_tensor(rows, torch.cat([dense, dense]), dense.shape, check_invariants=True)


def take(sums: GradientSum, gradients: Sequence[Tensor | None], *, weight: float = 1.0, measure: bool = False) -> None:
    for parameter, gradient in zip(sums.parameters, gradients, strict=True):
        parameter.grad = None if gradient is None else gradient.clone()
    sums.take(multiplier=weight, measure=measure, preconditioned=False)


def released(sums: GradientSum, codes: str | None = None) -> list[Tensor | None]:
    sums.release(sums.codes() if codes is None else codes)
    return [parameter.grad for parameter in sums.parameters]


def assert_equal(one: Tensor | None, other: Tensor | None) -> None:
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert torch.equal(one.to_dense(), other.to_dense())


@given(history=st.lists(steps, min_size=1, max_size=3))
def test_every_step_ends_with_the_sum_of_its_own_micro_gradients(history: list[list[MicroBatch]]) -> None:
    parameters, sums = make()
    for step in history:
        micro_gradients = [gradients_of(micro) for micro in step]
        for gradients in micro_gradients:
            take(sums, gradients)
            assert all(parameter.grad is None for parameter in parameters)
        for index, gradient in enumerate(released(sums)):
            assert_equal(gradient, slow.total(micro_gradients, index))
        sums.clear()


@given(step=steps)
def test_the_codes_say_which_gradients_there_are_and_of_which_kind(step: list[MicroBatch]) -> None:
    _, sums = make()
    assert sums.codes() == ABSENT * len(SHAPES)
    for count in range(1, len(step) + 1):  # asked after each, so that an answer is never an old one
        take(sums, gradients_of(step[count - 1]))
        came = [{kinds[index] for kinds, _, _ in step[:count]} - {ABSENT} for index in range(len(SHAPES))]
        assert sums.codes() == "".join(ABSENT if not c else SPARSE if c == {SPARSE} else DENSE for c in came)
    codes = sums.codes()
    sums.release(codes)
    assert sums.codes() == ABSENT * len(SHAPES)


def test_the_sum_of_one_micro_batch_is_its_gradient_and_no_copy() -> None:
    parameters, sums = make()
    sum((parameter * 2).sum() for parameter in parameters).backward()  # type: ignore[union-attr]
    before = [parameter.grad for parameter in parameters]
    sums.take(multiplier=1.0, measure=True, preconditioned=False)
    assert all(a is b for a, b in zip(released(sums), before, strict=True))


def test_clearing_gradients_between_micro_batches_does_no_harm() -> None:
    parameters, sums = make()
    for _ in range(3):
        sum((parameter * 2).sum() for parameter in parameters).backward()  # type: ignore[union-attr]
        sums.take(multiplier=1.0, measure=False, preconditioned=False)
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)  # a zero_grad(set_to_none=False) of the user's
            parameter.grad = None
    assert all(gradient is not None and bool((gradient == 6).all()) for gradient in released(sums))


def test_a_parameter_that_two_layers_share_is_summed_and_measured_once() -> None:
    shared = nn.Linear(2, 2, bias=False)
    model = nn.Sequential(shared, shared)
    sums = GradientSum(torch.optim.SGD(model.parameters(), lr=0.1))
    rows = [torch.ones(1, 2), torch.full((1, 2), 3.0)]
    expected = []
    for row in rows:
        expected.append(torch.autograd.grad(model(row).sum(), [shared.weight]))
        model(row).sum().backward()
        sums.take(multiplier=0.5, measure=True, preconditioned=False)
    squares = sums.small_squares()
    assert squares is not None and squares.tolist() == pytest.approx(slow.small_squares(expected, [0.5, 0.5], [1]))
    assert_equal(released(sums)[0], slow.total(expected, 0))


@pytest.mark.parametrize(("narrow", "large"), [(torch.float16, 2048.0), (torch.bfloat16, 256.0)])
def test_half_precision_gradients_are_added_up_in_float32(narrow: torch.dtype, large: float) -> None:
    _, sums = make(narrow)
    for value in (large, 1.0, 1.0, 1.0):  # large + 1 is large in the narrow type
        take(sums, [torch.full(shape, value, dtype=narrow) for shape in SHAPES])
    (first, *_) = sums.tensors_to_sum(sums.codes())
    assert first.dtype == torch.float32 and bool((first == large + 3).all())
    gradient = released(sums)[0]
    assert gradient is not None and gradient.dtype == narrow
    assert torch.equal(gradient, torch.full((3,), large + 3).to(narrow))


@given(step=steps)
def test_squares_are_measured_by_group_and_divided_by_the_weight(step: list[MicroBatch]) -> None:
    _, sums = make()
    micro_gradients = [gradients_of(micro) for micro in step]
    weights = [weight for _, weight, _ in step]
    for gradients, weight in zip(micro_gradients, weights, strict=True):
        take(sums, gradients, weight=weight, measure=True)
    squares, expected = sums.small_squares(), slow.small_squares(micro_gradients, weights, SIZES)
    assert (squares is None) == (expected is None)
    if squares is not None and expected is not None:
        assert squares.tolist() == pytest.approx(expected, rel=1e-6)
    sums.clear()
    assert sums.small_squares() is None


def test_nothing_is_measured_unless_asked_for() -> None:
    _, sums = make()
    take(sums, gradients_of(([DENSE] * 4, 1.0, 1)))
    assert sums.small_squares() is None
    assert sums.small_squares(preconditioned=True) is None


@given(mine=kinds, theirs=kinds, seed=st.integers(0, 99))
def test_replicas_with_different_gradients_exchange_one_list_and_end_with_one_sum(
    mine: list[str], theirs: list[str], seed: int
) -> None:
    """Two replicas in one process: what they exchange is added up by hand."""
    codes = "".join(max(pair) for pair in zip(mine, theirs, strict=True))
    both = [gradients_of((mine, 1.0, seed)), gradients_of((theirs, 1.0, seed + 100))]
    replicas = [make()[1] for _ in both]
    lists = []
    for sums, gradients in zip(replicas, both, strict=True):
        take(sums, gradients)
        lists.append(sums.tensors_to_sum(codes))
    assert [t.shape for t in lists[0]] == [t.shape for t in lists[1]]
    assert not any(tensor.is_sparse for tensors in lists for tensor in tensors)
    for one, other in zip(*lists, strict=True):
        one += other
        other.copy_(one)
    for sums in replicas:
        for index, gradient in enumerate(released(sums, codes)):
            assert_equal(gradient, slow.total(both, index))
            assert gradient is None or gradient.is_sparse == (codes[index] == SPARSE)


def test_gradients_whose_loss_was_not_weighted_can_be_weighted_afterwards() -> None:
    parameters, sums = make()
    for parameter, gradient in zip(parameters, gradients_of(([ABSENT, DENSE, SPARSE, DENSE], 1.0, 1)), strict=True):
        parameter.grad = gradient
    before = [None if p.grad is None else p.grad.to_dense().clone() for p in parameters]
    sums.weigh(0.25)
    for parameter, gradient in zip(parameters, before, strict=True):
        assert_equal(parameter.grad, None if gradient is None else gradient / 4)


def test_the_sum_is_empty_until_a_backward_pass_leaves_a_gradient() -> None:
    parameters, sums = make()
    assert sums.empty
    take(sums, [None] * 4)
    assert sums.empty
    parameters[2].sum().backward()
    assert not sums.empty  # it is still in .grad
    sums.take(multiplier=1.0, measure=False, preconditioned=False)
    assert not sums.empty
    sums.clear()
    assert sums.empty


def test_clearing_forgets_the_sums_the_squares_and_what_is_in_grad() -> None:
    parameters, sums = make()
    take(sums, gradients_of(([DENSE] * 4, 1.0, 1)), measure=True)
    parameters[0].sum().backward()
    sums.clear()
    assert sums.small_squares() is None and sums.codes() == ABSENT * 4
    assert all(parameter.grad is None for parameter in parameters)


def test_a_group_that_is_added_belongs_to_the_sum_from_the_next_clear_on() -> None:
    first, later = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([first], lr=0.1)
    sums = GradientSum(optimizer)
    assert not sums.outdated
    optimizer.add_param_group({"params": [later]})
    assert sums.outdated and len(sums.codes()) == 1
    sums.clear()
    assert not sums.outdated and sums.parameters == [first, later]
    (first.sum() + 2 * later.sum()).backward()
    sums.take(multiplier=1.0, measure=True, preconditioned=False)
    squares = sums.small_squares()
    assert squares is not None and squares.tolist() == pytest.approx([2.0, 12.0])
    assert sums.codes() == DENSE * 2
    assert [t.shape for t in sums.tensors_to_sum(sums.codes())] == [(2,), (3,)]
    assert [None if g is None else g.tolist() for g in released(sums)] == [[1, 1], [2, 2, 2]]


def test_the_whole_gradients_norm_is_that_of_what_lies_in_grad() -> None:
    parameters, sums = make()
    gradients = gradients_of(([DENSE, SPARSE, ABSENT, DENSE], 1.0, 5))
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    expected = [slow.squared_norm(gradients[:1]), slow.squared_norm(gradients[1:])]
    assert squares_of(sums.whole_norms()).tolist() == pytest.approx(expected, rel=1e-6)


def calls_of_a_step(num_parameters: int, *, measure: bool) -> int:
    """How many Python functions of swell run in a step of two micro-batches."""
    parameters = [nn.Parameter(torch.ones(2)) for _ in range(num_parameters)]
    sums, calls = GradientSum(torch.optim.SGD(parameters, lr=0.1)), 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and "swell" in frame.f_globals.get("__name__", "")

    sys.setprofile(count)
    try:
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = torch.ones(2)
            sums.take(multiplier=0.5, measure=measure, preconditioned=False)
        sums.tensors_to_sum(sums.codes())
        sums.release(sums.codes())
        squares_of(sums.whole_norms())
        sums.clear()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("measure", [False, True])
def test_a_step_makes_as_many_python_calls_for_many_parameters_as_for_few(measure: bool) -> None:
    assert calls_of_a_step(100, measure=measure) == calls_of_a_step(2, measure=measure) < 60


def test_an_optimizer_whose_parameters_are_all_frozen_has_an_empty_sum() -> None:
    parameters, sums = make()
    for parameter in parameters:
        parameter.requires_grad_(False)
    sums.take(multiplier=1.0, measure=True, preconditioned=False)
    squares = sums.small_squares()
    assert squares is not None and squares.tolist() == [0, 0]
    assert sums.tensors_to_sum(sums.codes()) == [] and released(sums) == [None] * 4
