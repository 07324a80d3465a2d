"""A small float64 problem and ways to train on it, shared by the job's tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import swell


class Points(Dataset):
    """Rows of a fixed random design with their index, so that a test sees which sample went where."""

    def __init__(self, n: int, *, features: int = 6) -> None:
        generator = torch.Generator().manual_seed(n)
        self.x = torch.randn(n, features, generator=generator, dtype=torch.float64)
        self.y = torch.randn(n, generator=generator, dtype=torch.float64)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return self.x[index], self.y[index], index


class Poison(torch.autograd.Function):
    """Makes gradients not finite where the loss is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * torch.nan


def make_model(features: int = 6, *, seed: int = 3) -> nn.Module:
    """A small non-linear model in float64, the same on every call."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(features, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5)
    return model


def mean_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Mean squared error."""
    return ((model(x).squeeze(-1) - y) ** 2).mean()


@dataclass
class Seen:
    """What one replica saw of a run."""

    gradients: list[list[Tensor]] = field(default_factory=list)
    samples: list[list[int]] = field(default_factory=list)  # one list a micro-batch
    steps_of_samples: list[list[int]] = field(default_factory=list)  # one list a committed step
    lr: list[float] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)


def train(
    dataset: Points,
    *,
    epochs: int = 1,
    make_optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
    loading: dict[str, Any] | None = None,
    **settings: Any,
) -> Seen:
    """Train as a user would and note every gradient that reaches the optimizer and every sample that was committed."""
    seen = Seen()
    job = swell.Job(**settings)
    model = make_model()
    optimizer = (make_optimizer or (lambda p: torch.optim.SGD(p, lr=0.05)))(model.parameters())
    model, optimizer = job.wrap(model, optimizer)

    def note(inner: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        grads = [p.grad for group in inner.param_groups for p in group["params"]]
        seen.gradients.append([g.clone() for g in grads if g is not None])
        seen.lr.append(float(inner.param_groups[0]["lr"]))

    optimizer.register_step_pre_hook(note)
    loader = job.loader(dataset, **(loading or {}))
    current: list[int] = []
    for _ in job.epochs(epochs):
        for x, y, index in loader:
            seen.samples.append(index.tolist())
            current += index.tolist()
            loss = mean_loss(model, x, y)
            job.metrics.mean("loss", loss, weight=len(y))
            job.metrics.sum("seen", len(y))
            job.backward(loss)
            if job.step():
                seen.steps_of_samples.append(current)
                current = []
    seen.metrics = job.metrics.results()
    seen.weights = [p.detach().clone() for p in model.parameters()]
    job.close()
    return seen


def gradients_alone(dataset: Points, steps: Sequence[Sequence[int]], *, lr: float = 0.05) -> list[list[Tensor]]:
    """The slow, obvious twin: one process, one pass over each step's samples, plain SGD."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    result = []
    for samples in steps:
        optimizer.zero_grad()
        rows = torch.tensor(list(samples))
        mean_loss(model, dataset.x[rows], dataset.y[rows]).backward()
        result.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        optimizer.step()
    return result


def largest_relative_error(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Of two gradients, over all their entries together."""
    a, b = torch.cat([t.flatten() for t in one]), torch.cat([t.flatten() for t in other])
    return float((a - b).norm() / b.norm())


def finish(job: swell.Job, model: Any, loader: Any) -> list[int]:
    """Go on to the end of the epoch; which samples came."""
    came: list[int] = []
    for x, y, index in loader:
        came += index.tolist()
        job.backward(mean_loss(model, x, y))
        job.step()
    return came
