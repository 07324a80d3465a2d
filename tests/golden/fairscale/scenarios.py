"""Training runs whose gains are compared with FairScale's: each takes the AdaScale class to run with.

Everything is arithmetic in float64, without a random number, so that the figures do not depend on a version of torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Rows = list[list[float]]


def data(step: int, part: int, size: int = 4) -> tuple[Tensor, Tensor]:
    at = torch.arange(size * 3, dtype=torch.float64).reshape(size, 3) + 17.3 * part + 101.7 * step
    x = torch.sin(at * 1.7) + 0.5 * torch.cos(at * at * 0.37)
    return x, x.sum(dim=1, keepdim=True) + torch.sin(at[:, :1] * 3.1)


def model() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    for number, parameter in enumerate(net.parameters()):
        with torch.no_grad():
            values = torch.arange(parameter.numel(), dtype=torch.float64)
            parameter.copy_((torch.sin(values * 1.3 + number) * 0.5).reshape(parameter.shape))
    return net


def groups(net: nn.Module) -> list[dict[str, Any]]:
    layers: Any = net
    return [{"params": list(layers[0].parameters())}, {"params": list(layers[2].parameters()), "lr": 0.02}]


class Run:
    """A loop that writes down what AdaScale says before each step and where the weights are after it."""

    def __init__(self, adascale: Callable[..., Any], **arguments: Any) -> None:
        self.net = model()
        self.accumulation = arguments.get("num_gradients_to_accumulate", 1)
        self.scaled_loss = arguments.get("is_scaled_loss", True)
        self.sgd = torch.optim.SGD(groups(self.net), lr=0.05, momentum=0.9)
        self.optimizer = adascale(self.sgd, **arguments)
        self.rows: Rows = []
        self.steps = 0

    def train(self, steps: int, *, rank: int = 0, replicas: int = 1, forward: Any = None) -> None:
        for _ in range(steps):
            for part in range(self.accumulation):
                x, y = data(self.steps, part * replicas + rank)
                loss = ((forward or self.net)(x) - y).square().mean()
                (loss / self.accumulation if self.scaled_loss else loss).backward()
            if not self.scaled_loss and self.accumulation > 1:
                self.optimizer.scale_grad_by_num_grads_to_accum()
            self.write_down()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.rows[-1] += [float(sum(p.detach().sum() for p in self.net.parameters()))]
            self.steps += 1

    def write_down(self) -> None:
        optimizer = self.optimizer
        gains = [optimizer.gain(index) for index in range(len(optimizer.param_groups))]
        self.rows.append([float(optimizer.gain()), *map(float, gains), float(optimizer.scale), optimizer.smoothing])


def plain(adascale: Callable[..., Any], **arguments: Any) -> Rows:
    run = Run(adascale, **arguments)
    run.train(12)
    return run.rows


def rescaled(adascale: Callable[..., Any], *, update_estimate: bool, **arguments: Any) -> Rows:
    run = Run(adascale, **arguments)
    for scale, accumulation in ((3.0, 3), (6.0, 6), (2.0, 2)):
        run.optimizer.set_num_gradients_to_accumulate(accumulation, update_smoothing=update_estimate)
        run.optimizer.set_scale(scale, update_estimate=update_estimate)
        run.accumulation = accumulation
        run.train(4)
    return run.rows


def extended(adascale: Callable[..., Any], **arguments: Any) -> Rows:
    """A parameter group that comes later."""
    run = Run(adascale, **arguments)
    run.train(4)
    bias = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    run.optimizer.add_param_group({"params": [bias], "lr": 0.01})
    run.train(4, forward=lambda x: run.net(x) + bias)
    return run.rows


SCENARIOS: dict[str, tuple[Callable[..., Rows], dict[str, Any]]] = {
    "debiased, scaled loss": (plain, {"num_gradients_to_accumulate": 3}),
    "debiased, unscaled loss": (plain, {"num_gradients_to_accumulate": 3, "is_scaled_loss": False}),
    "not debiased, scaled loss": (plain, {"num_gradients_to_accumulate": 4, "debias_ewma": False}),
    "not debiased, past the plain mean": (
        plain,
        {"num_gradients_to_accumulate": 2, "debias_ewma": False, "smoothing": 0.8, "is_scaled_loss": False},
    ),
    "a scale of its own": (plain, {"num_gradients_to_accumulate": 2, "scale": 5.5, "smoothing": 0.5}),
    "no smoothing": (plain, {"num_gradients_to_accumulate": 3, "smoothing": 0.0}),
    "scale changed, estimate rescaled": (
        rescaled,
        {"num_gradients_to_accumulate": 3, "update_estimate": True},
    ),
    "scale changed, estimate kept": (rescaled, {"num_gradients_to_accumulate": 3, "update_estimate": False}),
    "scale changed, not debiased, estimate rescaled": (
        rescaled,
        {"num_gradients_to_accumulate": 3, "update_estimate": True, "debias_ewma": False},
    ),
    "a group added": (extended, {"num_gradients_to_accumulate": 2}),
    "a group added, not debiased": (extended, {"num_gradients_to_accumulate": 2, "debias_ewma": False}),
}


def replicated(adascale: Callable[..., Any], *, rank: int, replicas: int, accumulation: int) -> Rows:
    """One replica of a DDP run; the process group is there."""
    run = Run(adascale, num_gradients_to_accumulate=accumulation)
    run.train(5, rank=rank, replicas=replicas, forward=nn.parallel.DistributedDataParallel(run.net))
    return run.rows


REPLICATED = {"2 replicas": (2, 1), "2 replicas, accumulating": (2, 2), "3 replicas": (3, 1)}
