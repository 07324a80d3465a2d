"""Signum: steps by the sign of the momentum, all of one size (Bernstein et al. 2018, arxiv.org/abs/1802.04434)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Signum(Optimizer):
    """``w -= lr * (sign(m) + weight_decay * w)`` with ``m`` the running mean of gradients."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        for group in self.param_groups:
            members = [p for p in group["params"] if p.grad is not None]
            if not members:
                continue
            gradients = [p.grad for p in members]
            for parameter, gradient in zip(members, gradients, strict=True):
                if "mean" not in self.state[parameter]:
                    self.state[parameter]["mean"] = torch.zeros_like(gradient)
            means = [self.state[p]["mean"] for p in members]
            torch._foreach_lerp_(means, gradients, 1 - group["momentum"])
            if group["weight_decay"]:
                torch._foreach_mul_(members, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(members, torch._foreach_sign(means), alpha=-group["lr"])
