"""A small regression problem in float64, and ETH's loop over it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import swell.compat.variable_batch_size as vbs


def problem(samples: int = 256) -> tuple[nn.Module, TensorDataset]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    x = torch.randn(samples, 5, dtype=torch.float64)
    return net, TensorDataset(x, x.sum(1, keepdim=True) + torch.randn(samples, 1, dtype=torch.float64))


def loss_of(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (net(x) - y).square().mean()


def train(net: nn.Module, data: TensorDataset, sampler: vbs.CustomSampler, optimizer: Any, epochs: range) -> list[bool]:
    loader = DataLoader(data, batch_sampler=sampler)
    updates = []
    for epoch in epochs:
        sampler.set_epoch(epoch)
        optimizer.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()  # no effect: the gradients of the step so far are kept
            loss_of(net, x, y).backward()
            updates.append(optimizer.step())
    return updates


def train_alone(net: nn.Module, data: TensorDataset, sampler: vbs.CustomSampler, optimizer: Any, epochs: range) -> None:
    """The same steps, each with its whole batch at once and the learning rate set by hand (linear, of 32)."""
    alone = vbs.CustomSampler(data, trace=1, num_replicas=1, rank=0, minibatch_size=1, seed=sampler.seed)
    for epoch in epochs:
        alone.set_epoch(epoch)
        order = [index for minibatch in alone for index in minibatch]
        start = 0
        for size in sampler.get_epochtrace(epoch):
            x, y = data[order[start : start + size]]
            optimizer.zero_grad()
            loss_of(net, x, y).backward()
            lr = optimizer.param_groups[0]["lr"]
            optimizer.param_groups[0]["lr"] = lr * size / 32
            optimizer.step()
            optimizer.param_groups[0]["lr"] = lr
            start += size
