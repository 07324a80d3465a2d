"""Figures from the device, read one step late so that no step waits for it."""

from __future__ import annotations

import time
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from swell.gradients.current_stream import CurrentStream

Payload = TypeVar("Payload")

_TOGETHER = 8  # the most figures that wait for each other
_WAIT_S = 0.02  # the longest that they wait, so that figures of long steps do not


class LateReadings(Generic[Payload]):
    """Turns small tensors into numbers, each handed out once, in order, with the payload that belongs to it.

    On the CPU, or with ``exact=True``, that happens at once. From an accelerator a tensor is copied to pinned memory
    and handed out with the next push, by which time the copy is long done. The memory and the event that says so are
    made once, because making them takes longer than the copy. Figures that nobody waits for are handed out together.
    """

    def __init__(self, *, exact: bool) -> None:
        self._exact = exact
        self._copies: list[tuple[Tensor, Payload]] = []  # on their way to the host
        self._marked = False  # whether the event stands after the latest of them
        self._marked_at = 0.0
        self._pinned: dict[tuple[int, torch.Size, torch.dtype], Tensor] = {}  # by place in the list, shape and type
        self._arrival: torch.cuda.Event | None = None
        self._current: CurrentStream | None = None
        self._stream: Any = None  # that the copies are queued on

    def push(self, figures: Tensor, payload: Payload, *, urgent: bool = True) -> list[tuple[list[float], Payload]]:
        """Take new figures, one number or a list; return those that can be read without waiting, oldest first.

        Figures that are not ``urgent`` may wait for those of the next few steps, if steps are short.
        """
        if self._exact or not figures.is_cuda:
            return [*self.drain(), (figures.reshape(-1).tolist(), payload)]
        if self._arrival is None or self._current is None:
            self._arrival, self._current = torch.cuda.Event(), CurrentStream(figures.device)
        stream = self._current.get()
        ready = self.drain() if self._marked or stream is not self._stream else []
        self._stream = stream
        kind = len(self._copies), figures.shape, figures.dtype
        numbers = self._pinned.get(kind)
        if numbers is None:
            numbers = self._pinned[kind] = torch.empty(figures.shape, dtype=figures.dtype, pin_memory=True)
        numbers.copy_(figures, non_blocking=True)  # now: the script, or a CUDA graph, may write over the loss later
        self._copies.append((numbers, payload))
        now = time.perf_counter()
        if urgent or len(self._copies) >= _TOGETHER or now - self._marked_at >= _WAIT_S:
            self._arrival.record(stream)
            self._marked, self._marked_at = True, now
        return ready

    def drain(self) -> list[tuple[list[float], Payload]]:
        """Wait for the figures that are still on their way, and return them."""
        if not self._copies:
            return []
        assert self._arrival is not None
        if not self._marked:
            self._arrival.record(self._stream)
        self._arrival.synchronize()
        copies, self._copies, self._marked = self._copies, [], False
        return [(numbers.reshape(-1).tolist(), payload) for numbers, payload in copies]
