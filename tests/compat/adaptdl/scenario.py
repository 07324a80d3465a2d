"""A small float64 problem, trained by a loop without a word of swell, and its plain PyTorch twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import swell.compat.adaptdl as adaptdl
from tests.job.scenario import Points, make_model, mean_loss

Penalty = Callable[[nn.Module], Tensor | float]


def sgd(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.05, momentum=0.5)


def open_run(
    make_optimizer: Callable[[nn.Module], Optimizer] = sgd, *, model: nn.Module | None = None, **wrapping: Any
) -> tuple[nn.Module, Optimizer, Any]:
    """Model, optimizer and wrapped model in a new session."""
    adaptdl.torch.init_process_group("gloo")
    model = model if model is not None else make_model()
    optimizer = make_optimizer(model)
    return model, optimizer, adaptdl.torch.AdaptiveDataParallel(model, optimizer, **wrapping)


def loader(n: int = 48, batch_size: int = 8, *, autoscale: int | None = None, **loading: Any) -> Any:
    """An AdaptiveDataLoader over ``Points``."""
    data = adaptdl.torch.AdaptiveDataLoader(Points(n), batch_size=batch_size, **loading)
    if autoscale is not None:
        data.autoscale_batch_size(autoscale)
    return data


def train(wrapped: nn.Module, optimizer: Optimizer, data: Any, *, penalty: Penalty = lambda model: 0.0) -> list[int]:
    """One pass of the user's own loop; the indices of its samples."""
    indices: list[int] = []
    wrapped.train()
    for x, y, index in data:
        indices += index.tolist()
        optimizer.zero_grad()
        (mean_loss(wrapped, x, y) + penalty(wrapped)).backward()
        optimizer.step()
    return indices


def plain(
    *,
    steps: int,
    batch_size: int = 8,
    n: int = 48,
    make_optimizer: Callable[[nn.Module], Optimizer] = sgd,
    penalty: Penalty = lambda model: 0.0,
    clip: float | None = None,
) -> list[Tensor]:
    """The obvious twin: one process, one batch after the other in order; its weights."""
    model, points = make_model(), Points(n)
    optimizer = make_optimizer(model)
    for step in range(steps):
        rows = torch.arange(step * batch_size, (step + 1) * batch_size) % n
        optimizer.zero_grad()
        (mean_loss(model, points.x[rows], points.y[rows]) + penalty(model)).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return weights(model)


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


class Writer:
    """Stands for a SummaryWriter."""

    def __init__(self) -> None:
        self.scalars: dict[str, float] = {}

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars[tag] = float(value)
