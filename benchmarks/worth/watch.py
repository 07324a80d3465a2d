"""What every run is measured by: its clock, and the training loss at a tenth, two tenths, … of its progress."""

from __future__ import annotations

import time
from typing import Any

import torch
from tasks import PROBE, Problem, mean_over
from torch import nn

POINTS = 20


class Watch:
    """A clock that stops while the run is looked at."""

    def __init__(self, problem: Problem, model: nn.Module, steps: int, *, points: int = POINTS) -> None:
        self._problem, self._model, self._steps, self._points = problem, model, steps, points
        self._probe = tuple(tensor[:PROBE] for tensor in problem.train)
        self._next = 1
        self.curve: list[dict[str, float]] = []
        self.seconds = 0.0
        self._began = 0.0

    def start(self) -> None:
        self._wait()
        self._began = time.perf_counter()

    def stop(self) -> None:
        self._wait()
        self.seconds += time.perf_counter() - self._began

    def due(self, progress: float) -> bool:
        return progress >= self._next * self._steps / self._points - 1e-6

    def look(self, *, progress: float, steps: int, samples: int, **more: Any) -> None:
        """Measure the training loss; the clock must stand."""
        while self.due(progress):
            self._next += 1
        self.curve.append(
            {
                "progress": progress / self._steps,
                "steps": steps,
                "samples": samples,
                "seconds": self.seconds,
                "loss": mean_over(self._model, self._problem.loss, self._probe, 512),
                "result": self._problem.judge(self._model),
                **more,
            }
        )

    def _wait(self) -> None:
        if self._problem.train[0].is_cuda:
            torch.cuda.synchronize()
