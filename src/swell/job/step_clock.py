"""How long a step takes: by the host's clock, and on CUDA by the device's.

On CUDA the host only queues work and may be a step ahead, or catch up after a step that was slow to queue. Its clock is
right on average and wrong for a single step.
"""

from __future__ import annotations

import time
from typing import Any

import torch


class Duration:
    """The time between two moments; reading it waits until the device has reached the second."""

    def __init__(self, began: Any, ended: Any) -> None:
        self._moments = began, ended
        self._seconds: float | None = None

    @property
    def seconds(self) -> float:
        if self._seconds is None:
            self._seconds = self._read(*self._moments)
        return self._seconds

    @staticmethod
    def _read(began: Any, ended: Any) -> float:
        if isinstance(ended, float):
            return ended - began
        for moment in (began, ended):
            moment.synchronize()
        return began.elapsed_time(ended) / 1e3


class StepClock:
    """Runs from the choice of a step to its commit; what the user does between steps is not counted."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._began: Any = None

    def start(self) -> None:
        self._began = self._now()

    def stop(self) -> Duration:
        return Duration(self._began, self._now())

    def _now(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        moment = torch.cuda.Event(enable_timing=True)
        moment.record(torch.cuda.current_stream(self._device))
        return moment
