"""Figures from the device, read one step late so that no step waits for it."""

from __future__ import annotations

from typing import Generic, TypeVar

import torch
from torch import Tensor

Payload = TypeVar("Payload")


class LateReadings(Generic[Payload]):
    """Turns small tensors into numbers, each handed out once, in order, with the payload that belongs to it.

    On the CPU, or with ``exact=True``, that happens at once. From an accelerator a tensor is copied to pinned memory
    and handed out with the next push, by which time the copy is long done. The memory and the event that says so are
    made once, because making them takes longer than the copy.
    """

    def __init__(self, *, exact: bool) -> None:
        self._exact = exact
        self._copy: tuple[Tensor, Payload] | None = None  # on its way to the host
        self._pinned: dict[tuple[torch.Size, torch.dtype], Tensor] = {}
        self._arrival: torch.cuda.Event | None = None  # of the latest copy

    def push(self, figures: Tensor, payload: Payload) -> list[tuple[list[float], Payload]]:
        """Take new figures; return those that can be read without waiting, oldest first."""
        ready = self.drain()
        if self._exact or figures.device.type != "cuda":
            return [*ready, (figures.tolist(), payload)]
        kind = figures.shape, figures.dtype
        numbers = self._pinned.get(kind)
        if numbers is None:
            numbers = self._pinned[kind] = torch.empty(figures.shape, dtype=figures.dtype, pin_memory=True)
        numbers.copy_(figures, non_blocking=True)
        if self._arrival is None:
            self._arrival = torch.cuda.Event()
        self._arrival.record()
        self._copy = numbers, payload
        return ready

    def drain(self) -> list[tuple[list[float], Payload]]:
        """Wait for the figures that are still on their way, and return them."""
        if self._copy is None:
            return []
        numbers, payload = self._copy
        self._copy = None
        assert self._arrival is not None
        self._arrival.synchronize()
        return [(numbers.tolist(), payload)]
