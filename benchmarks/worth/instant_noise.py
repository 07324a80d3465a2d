"""The noise scale at one moment, without any average over time: plain, in Adam's metric, and weighted by curvature."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from plain import batches
from tasks import Problem, Task
from torch import Tensor, nn
from torch.optim import Optimizer

CHUNKS = 32  # base batches that one measurement takes
PAIRS = 3


class InstantNoise:
    """Measures at every point of a run that is given; figures are in base batches."""

    def __init__(self, task: Task, problem: Problem) -> None:
        self._task, self._problem = task, problem
        self.found: list[dict[str, Any]] = []
        self._calls = 0

    def __call__(self, step: int, model: nn.Module, optimizers: list[Optimizer]) -> None:
        self._calls += 1
        if self._calls % 2:  # every second point of the curve
            return
        device = self._problem.train[0].device
        source = batches(self._problem, self._task.base, 5_000 + step)
        chunks = [next(source) for _ in range(CHUNKS)]
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            self.found.append({"step": step, **self._measure(model, optimizers, chunks)})

    def _measure(self, model: nn.Module, optimizers: list[Optimizer], chunks: list[Any]) -> dict[str, Any]:
        metric = _metric(model, optimizers)
        twin = copy.deepcopy(model)
        parameters = [p for p in twin.parameters() if p.requires_grad]

        def gradient(index: int) -> Tensor:
            torch.manual_seed(index)
            loss = self._problem.loss(twin, chunks[index])
            parts = torch.autograd.grad(loss, parameters, allow_unused=True)
            flat = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, parts, strict=True)]
            return torch.cat([part.reshape(-1) for part in flat])

        each = torch.stack([gradient(index) for index in range(CHUNKS)])
        mean = each.mean(0)
        found: dict[str, Any] = {
            "gradient": float(mean.norm()),
            "weights": float(torch.cat([p.detach().reshape(-1) for p in parameters]).norm()),
            "lr": float(optimizers[0].param_groups[0]["lr"]),
            "plain": _ratio(each, mean),
        }
        metrics = {"plain": torch.ones_like(mean)}
        if metric is not None:
            found["metric"] = _ratio(each / metric, mean / metric)
            metrics["metric"] = metric
            half = metric.sqrt()
            found["half_metric"] = _ratio(each / half, mean / half)  # where P weighs G once: the decrease that is made
        for name, divisor in metrics.items():
            found[f"curved_{name}"] = self._curved(parameters, gradient, each, divisor)
        return found

    def _curved(
        self, parameters: Sequence[Tensor], gradient: Callable[[int], Tensor], each: Tensor, divisor: Tensor
    ) -> dict[str, float]:
        """G P H P G of two independent halves, and tr(H P Sigma P) of a base batch, by differences of gradients."""
        before = torch.cat([p.detach().reshape(-1) for p in parameters])
        here = each.mean(0)

        def curve(direction: Tensor) -> Tensor:
            size = 2e-3 * before.norm() / direction.norm()
            self._place(parameters, before + size * direction)
            there = torch.stack([gradient(index) for index in range(CHUNKS)]).mean(0)
            self._place(parameters, before)
            return (there - here) / size

        a, b = each[: CHUNKS // 2].mean(0) / divisor, each[CHUNKS // 2 :].mean(0) / divisor
        signal = float(torch.dot(b, curve(a)))
        noises = []
        for pair in range(PAIRS):
            n = (each[2 * pair] - each[2 * pair + 1]) / divisor / 2**0.5
            noises.append(float(torch.dot(n, curve(n))))
        return {"signal": signal, "noise": sum(noises) / PAIRS, "slope": float(torch.dot(here, here / divisor))}

    @staticmethod
    @torch.no_grad()
    def _place(parameters: Sequence[Tensor], values: Tensor) -> None:
        place = 0
        for p in parameters:
            p.copy_(values[place : place + p.numel()].view_as(p))
            place += p.numel()


def _ratio(each: Tensor, mean: Tensor) -> float:
    """Noise over signal of base batches, in base batches."""
    count, small, big = len(each), float((each**2).sum(1).mean()), float((mean**2).sum())
    noise, signal = count * (small - big) / (count - 1), (count * big - small) / (count - 1)
    return noise / signal if signal > 0 else float("inf")


def _metric(model: nn.Module, optimizers: list[Optimizer]) -> Tensor | None:
    """What the optimizer divides each gradient by; None where an optimizer has no elementwise second moment."""
    divisors: dict[int, Tensor] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for p in group["params"]:
                state = optimizer.state[p]
                second = state.get("exp_avg_sq", state.get("square_avg"))
                if second is None:
                    return None
                beta = group["betas"][1] if "betas" in group else 0.0
                corrected = second / (1 - beta ** float(state["step"])) if beta else second
                divisors[id(p)] = corrected.sqrt() + group["eps"]
    return torch.cat([divisors[id(p)].reshape(-1) for p in model.parameters() if p.requires_grad])
