"""How long a step takes: by the host's clock, or by that of a CUDA device.

On CUDA the host only queues work and may be a step ahead, or catch up after a step that was slow to queue. Its clock is
right on average and wrong for a single step. The device's clock is asked only where single steps count, because that
takes longer.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch

from swell.gradients.current_stream import CurrentStream


class Duration:
    """The time between two moments of a device; reading it waits until the device has reached the second."""

    def __init__(self, began: Any, ended: Any, spare: list[Any]) -> None:
        self._began, self._ended, self._spare = began, ended, spare
        self._seconds: float | None = None

    @property
    def seconds(self) -> float:
        if self._seconds is None:
            self._seconds = self._read()
        return self._seconds

    def _read(self) -> float:
        self._ended.synchronize()
        seconds = self._began.elapsed_time(self._ended) / 1e3
        self._spare += (self._began, self._ended)
        return seconds


class HostDuration(NamedTuple):
    """The time between two moments of the host."""

    seconds: float


class StepClock:
    """Runs from the choice of a step to its commit; what the user does between steps is not counted."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, CurrentStream(device)
        self._began: Any = None
        self._by_device = False
        self._spare: list[Any] = []  # events of durations that were read; making one takes longer than using it again

    def start(self, *, exact: bool) -> None:
        """A step begins; ``exact`` if the time of this single step counts."""
        self._by_device = exact and self._device.type == "cuda"
        self._began = self._moment() if self._by_device else time.perf_counter()

    def stop(self) -> Duration | HostDuration:
        """The step was committed."""
        if self._by_device:
            return Duration(self._began, self._moment(), self._spare)
        return HostDuration(time.perf_counter() - self._began)

    def _moment(self) -> Any:
        moment = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        moment.record(self._stream.get())
        return moment
