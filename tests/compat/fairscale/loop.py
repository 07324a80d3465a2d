"""A small problem with known noise, and a loop over it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def problem(seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(6, 3)


def loss_of(net: Any, samples: int = 8) -> Tensor:
    x = torch.randn(samples, 6)
    return (net(x) - x[:, :3] - torch.randn(samples, 3)).square().mean()


def accumulate(net: Any, count: int, *, divide: bool = True) -> None:
    for _ in range(count):
        (loss_of(net) / (count if divide else 1)).backward()


def train(net: Any, optimizer: Any, steps: int, count: int = 2) -> list[float]:
    gains = []
    for _ in range(steps):
        accumulate(net, count)
        gains.append(optimizer.gain())
        optimizer.step()
        optimizer.zero_grad()
    return gains
