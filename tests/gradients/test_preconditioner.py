"""Gradients in the optimizer's own metric are those of a twin that writes its formula out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from swell.gradients.norms import GroupNorms
from swell.gradients.preconditioner import PACKED, PIECE, SMALL, WARM_UP_STEPS, Preconditioner
from tests.devices import needs_cuda
from tests.reference.adaptive_metric import divided

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.9)),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-3),
    "AMSGrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, eps=1e-2),
    "Adadelta": lambda p: torch.optim.Adadelta(p, eps=1e-4),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}


def make(name: str = "Adam", *, sizes: tuple[int, ...] = (3, 5), steps: int = WARM_UP_STEPS) -> Any:
    """Parameters in a group each, their optimizer after some steps, and its preconditioner."""
    torch.manual_seed(1)
    parameters = [nn.Parameter(torch.randn(size, dtype=torch.float64)) for size in sizes]
    optimizer = OPTIMIZERS[name]([{"params": [p], "weight_decay": 0.0} for p in parameters])
    metric = Preconditioner(optimizer)
    for _ in range(steps):
        step(optimizer, metric)
    return parameters, optimizer, metric


def step(optimizer: Optimizer, metric: Preconditioner) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    metric.stepped()


def gradients_for(parameters: list[nn.Parameter]) -> list[Tensor | None]:
    return [torch.randn_like(parameter) for parameter in parameters]


def assert_as_written_out(quotients: list[Tensor | None], gradients: list[Tensor | None], optimizer: Optimizer) -> None:
    groups = [(group, parameter) for group in optimizer.param_groups for parameter in group["params"]]
    for quotient, gradient, (group, parameter) in zip(quotients, gradients, groups, strict=True):
        assert quotient is not None and gradient is not None
        torch.testing.assert_close(quotient, divided(gradient, optimizer.state[parameter], group))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_gradients_are_divided_by_the_root_of_the_second_moment(name: str) -> None:
    parameters, optimizer, metric = make(name)
    for _ in range(3):  # the metric moves with every step
        gradients = gradients_for(parameters)
        before = [None if g is None else g.clone() for g in gradients]
        assert_as_written_out(metric.divide(parameters, gradients), gradients, optimizer)
        assert all(torch.equal(a, b) for a, b in zip(gradients, before, strict=True))  # type: ignore[arg-type]
        step(optimizer, metric)


def test_all_micro_gradients_of_a_step_share_the_metric_of_the_step_before() -> None:
    parameters, _, metric = make()
    gradients = gradients_for(parameters)
    first, second = metric.divide(parameters, gradients), metric.divide(parameters, gradients)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))  # type: ignore[arg-type]


def test_hyper_parameters_that_change_between_steps_change_the_metric() -> None:
    parameters, optimizer, metric = make()
    gradients = gradients_for(parameters)
    metric.divide(parameters, gradients)
    step(optimizer, metric)
    optimizer.param_groups[0].update(betas=(0.8, 0.99), eps=0.1)
    assert_as_written_out(metric.divide(parameters, gradients), gradients, optimizer)


def test_state_that_was_replaced_is_read_again_after_a_reset() -> None:
    parameters, optimizer, metric = make()
    saved = copy.deepcopy(optimizer.state_dict())
    for _ in range(3):
        step(optimizer, metric)
    gradients = gradients_for(parameters)
    metric.divide(parameters, gradients)
    optimizer.load_state_dict(saved)
    metric.reset()
    assert_as_written_out(metric.divide(parameters, gradients), gradients, optimizer)


def test_a_metric_is_warm_once_every_second_moment_is_five_steps_old() -> None:
    parameters, optimizer, metric = make(steps=0)
    gradients = gradients_for(parameters)
    for _ in range(WARM_UP_STEPS):
        assert not metric.warm
        assert all(a is b for a, b in zip(metric.divide(parameters, gradients), gradients, strict=True))
        step(optimizer, metric)
    assert metric.warm
    optimizer.state.clear()
    metric.reset()
    assert not metric.warm


def test_a_plain_optimizer_has_no_metric() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    metric = Preconditioner(optimizer)
    for _ in range(WARM_UP_STEPS + 1):
        step(optimizer, metric)
    gradient = torch.ones(2)
    assert not metric.warm and metric.divide([parameter], [gradient])[0] is gradient


def test_missing_and_sparse_gradients_and_those_without_a_second_moment_stay_as_they_are() -> None:
    parameters, optimizer, metric = make(sizes=(3, 3, 3))
    fresh = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer.add_param_group({"params": [fresh]})
    sparse, dense = torch.ones(3, dtype=torch.float64).to_sparse(), torch.ones(3, dtype=torch.float64)
    gradients = [None, sparse, dense, dense]
    for function in (metric.divide, metric.norm_proxies):
        none, same, quotient, new = function([*parameters, fresh], gradients)
        assert none is None and same is sparse and new is dense
        torch.testing.assert_close(quotient, divided(dense, optimizer.state[parameters[2]], optimizer.param_groups[2]))


def test_one_parameter_can_be_divided_without_the_others() -> None:
    parameters, _, metric = make()
    gradients = gradients_for(parameters)
    assert torch.equal(metric.divide(parameters[1:], gradients[1:])[0], metric.divide(parameters, gradients)[1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_is_measured_has_the_norm_of_the_quotient_however_large_it_is(dtype: torch.dtype) -> None:
    sizes = (3, SMALL, SMALL + 1, PIECE, 2 * PIECE + 5)
    parameters = [nn.Parameter(torch.ones(n, dtype=dtype)) for n in sizes]
    optimizer = torch.optim.AdamW(parameters, lr=0.01, eps=1e-3)
    metric = Preconditioner(optimizer)
    torch.manual_seed(0)
    for _ in range(WARM_UP_STEPS):
        step(optimizer, metric)
    gradients = gradients_for(parameters)
    quotients, proxies = metric.divide(parameters, gradients), metric.norm_proxies(parameters, gradients)
    rel = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    for quotient, proxy in zip(quotients, proxies, strict=True):
        assert quotient is not None and proxy is not None
        assert float(proxy.double().norm()) == pytest.approx(float(quotient.double().norm()), rel=rel)


class OnAccelerator(Preconditioner):
    """One that does what it does where a call costs more than a copy, on any device."""

    def _read_divisors(self) -> Any:
        divisors = super()._read_divisors()
        self._on_cpu = False
        return divisors


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_group_that_is_divided_in_one_piece_has_the_norm_of_its_quotients(name: str, device: str) -> None:
    torch.manual_seed(2)
    shapes = [[(3, 5), (7,), (2, 4, 3, 3)], [(6,)], [(8, 2), (5,), (4,)], [(PACKED // 2 + 1,), (PACKED // 2,)]]
    groups = [[nn.Parameter(torch.randn(*shape, device=device)) for shape in group] for group in shapes]
    groups[0][2].data = groups[0][2].data.to(memory_format=torch.channels_last)
    optimizer = OPTIMIZERS[name]([{"params": group} for group in groups])
    metric = OnAccelerator(optimizer)
    for _ in range(WARM_UP_STEPS):
        step(optimizer, metric)
    parameters = [parameter for group in groups for parameter in group]
    norms = GroupNorms(parameters, [len(group) for group in groups])
    for missing in ((), (), (0,), (5, 6)):  # the divisors of the first are used again
        gradients = gradients_for(parameters)
        for index in missing:
            gradients[index] = None
        before = [None if gradient is None else gradient.clone() for gradient in gradients]
        proxies = metric.norm_proxies(parameters, gradients)
        torch.testing.assert_close(norms.squares(proxies), norms.squares(metric.divide(parameters, gradients)))
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(gradients, before, strict=True))  # type: ignore[arg-type]
    assert sum(proxy is not None for proxy in proxies) == 5  # two groups in one piece, one of one, one too large
    step(optimizer, metric)  # which changes the divisors
    torch.testing.assert_close(
        norms.squares(metric.norm_proxies(parameters, before)), norms.squares(metric.divide(parameters, before))
    )


class FarCount(Tensor):
    """A step count that says it is on an accelerator, and counts how often it was read."""

    reads = 0

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda")

    def __float__(self) -> float:
        FarCount.reads += 1
        return float(self.as_subclass(Tensor))


def test_step_counts_on_an_accelerator_are_read_once_and_counted_from_there() -> None:
    parameters, optimizer, metric = make(steps=WARM_UP_STEPS)
    for parameter in parameters:
        optimizer.state[parameter]["step"] = optimizer.state[parameter]["step"].as_subclass(FarCount)
    FarCount.reads = 0
    gradients: Any = gradients_for(parameters)
    for _ in range(3):
        assert metric.warm
        quotients = metric.divide(parameters, gradients)
        assert FarCount.reads == len(parameters)
        for index, (parameter, group) in enumerate(zip(parameters, optimizer.param_groups, strict=True)):
            state = optimizer.state[parameter]
            plain = {**state, "step": state["step"].as_subclass(Tensor)}
            torch.testing.assert_close(quotients[index], divided(gradients[index], plain, group))
        for parameter in parameters:  # a step of the optimizer that leaves the second moment as it is
            optimizer.state[parameter]["step"].as_subclass(Tensor).add_(1)
        metric.stepped()


@needs_cuda
def test_a_fused_optimizer_on_an_accelerator_has_the_same_metric() -> None:
    torch.manual_seed(1)
    parameters = [nn.Parameter(torch.randn(4, device="cuda")) for _ in range(2)]
    optimizer = torch.optim.Adam([{"params": [p]} for p in parameters], lr=0.01, fused=True)
    metric = Preconditioner(optimizer)
    for _ in range(2 * WARM_UP_STEPS):
        step(optimizer, metric)
        gradients = gradients_for(parameters)
        if metric.warm:
            assert_as_written_out(metric.divide(parameters, gradients), gradients, optimizer)
    assert metric.warm
