"""Compiled models: measuring them compiles nothing for the halves of a split step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import swell


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Part(4, 8), Part(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)))


class Part(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def network() -> Network:
    torch.manual_seed(0)
    return Network()


def data(count: int = 48) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(count, 4, generator=generator), torch.randint(3, (count,), generator=generator))


class Compiler:
    """A backend for ``torch.compile`` that runs what it is given as it is, and counts."""

    def __init__(self) -> None:
        self.compiled = self.runs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        self.compiled += 1

        def run(*values: Any) -> Any:
            self.runs += 1
            return graph.forward(*values)

        return run


def whole(model: Network, compiler: Compiler, **options: Any) -> nn.Module:
    compiled: Any = torch.compile(model, backend=compiler, **options)
    return compiled


def in_place(model: Network, compiler: Compiler) -> nn.Module:
    model.compile(backend=compiler)
    return model


def in_part(model: Network, compiler: Compiler) -> nn.Module:
    model.first.compile(backend=compiler)
    return model


def trained(model: nn.Module) -> tuple[list[float], swell.Job]:
    torch._dynamo.reset()
    statistics = swell.Statistics(split_every=2, budget=None)
    job = swell.Job(batch=8, micro=8, rule="constant", statistics=statistics, progress=False)
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader, losses = job.loader(data()), []
    for _ in job.epochs(2):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            losses.append(loss.item())
            job.backward(loss)
            job.step()
    return losses, job


@pytest.mark.parametrize("compiled", [whole, in_place, in_part])
def test_measuring_a_compiled_model_compiles_nothing_for_the_halves(compiled: Callable[..., nn.Module]) -> None:
    compiler = Compiler()
    losses, job = trained(compiled(network(), compiler))
    assert len(losses) == 12 + 6  # every other step was split
    assert compiler.compiled == 1  # for the whole micro-batch
    assert compiler.runs == 6
    assert job.noise is not None


def test_a_compiled_model_is_measured_as_the_model_itself_is() -> None:
    losses, job = trained(network())
    compiled_losses, compiled_job = trained(whole(network(), Compiler()))
    assert compiled_losses == pytest.approx(losses, rel=1e-5)
    assert job.noise is not None
    assert compiled_job.noise is not None
    assert compiled_job.noise.total.noise == pytest.approx(job.noise.total.noise, rel=1e-4)
    assert compiled_job.noise.total.signal == pytest.approx(job.noise.total.signal, rel=1e-4)


def test_the_halves_use_what_was_compiled_for_any_batch() -> None:
    compiler = Compiler()
    trained(whole(network(), compiler, dynamic=True))
    assert compiler.compiled == 1
    assert compiler.runs == 6 + 10  # all but the first two halves, before anything was compiled


def test_after_a_split_step_other_shapes_are_compiled_as_ever() -> None:
    compiler = Compiler()
    model = whole(network(), compiler)
    trained(model)
    model(torch.randn(5, 4))
    assert compiler.compiled == 2


def test_a_loop_that_is_left_in_a_split_step_leaves_compiling_as_it_was() -> None:
    torch._dynamo.reset()
    compiler = Compiler()
    model = whole(network(), compiler)
    statistics = swell.Statistics(split_every=1, budget=None)
    job = swell.Job(batch=8, micro=8, rule="constant", statistics=statistics, progress=False)
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = job.loader(data())
    for _ in job.epochs(1):
        for x, _ in loader:
            model(x)
            assert compiler.compiled == 0
            break
    model(torch.randn(4, 4))
    assert compiler.compiled == 1
