"""The job's step of an optimizer is ``optimizer.step()``: the same weights, and who waits for steps is told."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from swell.gradients.optimizer_step import OptimizerStep

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
}


class Counted(torch.optim.SGD):
    """An optimizer of the user's own, which counts calls of its step."""

    calls = 0

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        return super().step(closure)


def model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def with_gradient(network: nn.Linear) -> Callable[[], float]:
    def closure() -> float:
        network.zero_grad()
        loss = network(torch.ones(4, 3)).square().sum()
        loss.backward()
        return loss.item()

    closure()
    return closure


@pytest.fixture
def stepped() -> Iterator[tuple[nn.Linear, torch.optim.SGD, OptimizerStep]]:
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with_gradient(network)
    yield network, optimizer, OptimizerStep(optimizer)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_weights_are_those_of_the_optimizers_own_step(kind: str) -> None:
    weights = []
    for by_job in (False, True):
        network = model()
        optimizer = OPTIMIZERS[kind](network.parameters())
        step = OptimizerStep(optimizer) if by_job else optimizer.step
        for _ in range(3):
            closure = with_gradient(network)
            step(closure if kind == "LBFGS" else None)  # type: ignore[operator]
        weights.append(network.weight.detach().clone())
    assert torch.equal(*weights)


def test_the_wrapper_of_torch_is_left_out(stepped: tuple[nn.Linear, Any, OptimizerStep]) -> None:
    """Otherwise nothing is gained; a torch that wraps steps in another way shows here."""
    _, optimizer, step = stepped
    assert step._bare() is type(optimizer).step.__wrapped__
    assert not step._is_heard()


@pytest.mark.parametrize("when", ["pre", "post"])
@pytest.mark.parametrize("everywhere", [False, True])
def test_hooks_are_called(stepped: tuple[nn.Linear, Any, OptimizerStep], when: str, everywhere: bool) -> None:
    network, optimizer, step = stepped
    called = []
    if everywhere:
        register = register_optimizer_step_pre_hook if when == "pre" else register_optimizer_step_post_hook
    else:
        register = getattr(optimizer, f"register_step_{when}_hook")
    handle = register(lambda *given: called.append(given[0]))
    try:
        step(None)
    finally:
        handle.remove()
    assert called == [optimizer]
    with_gradient(network)
    step(None)
    assert len(called) == 1


def test_only_the_jobs_own_hook_is_left_out(stepped: tuple[nn.Linear, Any, OptimizerStep]) -> None:
    _, optimizer, step = stepped
    called = []
    step.guard = optimizer.register_step_pre_hook(lambda *_: called.append("guard"))
    step(None)
    assert called == []
    optimizer.register_step_pre_hook(lambda *_: called.append("script"))
    step(None)
    assert called == ["guard", "script"]


def test_a_profiler_sees_the_step(stepped: tuple[nn.Linear, Any, OptimizerStep]) -> None:
    _, _, step = stepped
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        step(None)
    assert "Optimizer.step#SGD.step" in {event.key for event in profile.key_averages()}


def test_a_scheduler_knows_of_the_step(stepped: tuple[nn.Linear, Any, OptimizerStep]) -> None:
    _, optimizer, step = stepped
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert step._bare() is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(None)
        scheduler.step()


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_step_that_somebody_has_put_there_is_called(scheduled: bool) -> None:
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    if scheduled:
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
    given, called = optimizer.step, []

    @functools.wraps(given)
    def wrapped(*args: Any) -> Any:
        called.append(args)
        return given(*args)

    optimizer.step = wrapped  # type: ignore[method-assign]
    with_gradient(network)
    OptimizerStep(optimizer)(None)
    assert called == [(None,)]


def test_a_step_that_somebody_has_wrapped_for_the_whole_class_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    network = model()
    optimizer = Counted(network.parameters(), lr=0.1)
    with_gradient(network)
    OptimizerStep(optimizer)(None)
    assert optimizer.calls == 1
    given, called = Counted.step, []

    @functools.wraps(given)
    def wrapped(*args: Any) -> Any:
        called.append(args)
        return given(*args)

    monkeypatch.setattr(Counted, "step", wrapped)
    OptimizerStep(optimizer)(None)
    assert called == [(optimizer, None)]
    assert optimizer.calls == 2


def test_what_only_looks_like_an_optimizer_is_stepped() -> None:
    class Plain:
        def __init__(self) -> None:
            self.steps = 0

        def step(self, closure: Any = None) -> None:
            self.steps += 1

    optimizer: Any = Plain()
    OptimizerStep(optimizer)(None)
    assert optimizer.steps == 1
