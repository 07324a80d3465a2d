"""What a step is worth, by branches from one state: base steps against fewer large ones, on the same probe samples.

Each branch ends with the same short decay at the base batch, so that both are compared at the same noise: a larger
batch lowers the loss at once by lowering the noise, which is not progress.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from plain import batches, take_step
from tasks import Problem, Task, mean_over
from torch import nn
from torch.optim import Optimizer

DECAY = 24  # base steps
BASE_STEPS = (0, 24, 48, 96, 144)
SCALES = (4, 8, 16)
PROBE = 8_192


class Branches:
    """Branches at some points of a run."""

    def __init__(
        self, task: Task, problem: Problem, points: tuple[float, ...] = (0.1, 0.3, 0.6), draws: int = 2
    ) -> None:
        self._task, self._problem, self._draws = task, problem, draws
        self._points = [round(point * task.steps) for point in points]
        self._probe = tuple(tensor[-PROBE:] for tensor in problem.train)
        self.found: list[dict[str, Any]] = []

    def __call__(self, step: int, model: nn.Module, optimizers: list[Optimizer]) -> None:
        if not self._points or step < self._points[0]:
            return
        self._points.pop(0)
        device = self._problem.train[0].device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            for draw in range(self._draws):
                torch.manual_seed(draw)
                base = self._curve(model, optimizers, 1, 1.0, BASE_STEPS, draw)
                for scale in SCALES:
                    counts = tuple(max(1, round(m / scale)) for m in (24, 48, 96, 144, 288))
                    for name, factor in (("none", 1.0), ("root", scale**0.5), ("linear", float(scale))):
                        if self._task.adaptive and name == "linear":
                            continue
                        losses = self._curve(model, optimizers, scale, factor, counts, draw + 50)
                        self.found.append(
                            {"step": step, "draw": draw, "scale": scale, "rule": name, "base": base, "large": losses}
                        )

    def _curve(
        self,
        model: nn.Module,
        optimizers: list[Optimizer],
        scale: int,
        factor: float,
        counts: tuple[int, ...],
        seed: int,
    ) -> list[tuple[int, float]]:
        """(steps, probe loss after a short decay) of one branch."""
        model, optimizers = _copy(self._task, model, optimizers)
        rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
        _set(optimizers, rates, factor)
        source, curve, done = batches(self._problem, self._task.base * scale, 7_000 + seed), [], 0
        for count in counts:
            while done < count:
                take_step(self._problem, model, optimizers, next(source), self._task.clip)
                done += 1
            curve.append((done, self._decayed(model, optimizers, rates, seed)))
        return curve

    def _decayed(self, model: nn.Module, optimizers: list[Optimizer], rates: list[list[float]], seed: int) -> float:
        model, optimizers = _copy(self._task, model, optimizers)
        source = batches(self._problem, self._task.base, 9_000 + seed % 50)
        for step in range(DECAY):
            _set(optimizers, rates, 1 - (step + 0.5) / DECAY)
            take_step(self._problem, model, optimizers, next(source), self._task.clip)
        return mean_over(model, self._problem.loss, self._probe)


def _copy(task: Task, model: nn.Module, optimizers: list[Optimizer]) -> tuple[nn.Module, list[Optimizer]]:
    twin = copy.deepcopy(model)
    copies = task.optimizers(twin, 1.0)
    for own, other in zip(copies, optimizers, strict=True):
        own.load_state_dict(copy.deepcopy(other.state_dict()))
    return twin, copies


def _set(optimizers: list[Optimizer], rates: list[list[float]], factor: float) -> None:
    for optimizer, values in zip(optimizers, rates, strict=True):
        for group, value in zip(optimizer.param_groups, values, strict=True):
            group["lr"] = value * factor
