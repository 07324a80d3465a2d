"""Figures from the device, read one step late so that no step waits for it."""

from __future__ import annotations

from typing import Generic, TypeVar

import torch
from torch import Tensor

Payload = TypeVar("Payload")


class LateReadings(Generic[Payload]):
    """Turns small tensors into numbers, each handed out once, in order, with the payload that belongs to it.

    On the CPU, or with ``exact=True``, that happens at once. From an accelerator a tensor is copied to pinned memory
    and handed out with the next push, by which time the copy is long done.
    """

    def __init__(self, *, exact: bool) -> None:
        self._exact = exact
        self._copy: tuple[Tensor, torch.cuda.Event, Payload] | None = None  # on its way to the host

    def push(self, figures: Tensor, payload: Payload) -> list[tuple[list[float], Payload]]:
        """Take new figures; return those that can be read without waiting, oldest first."""
        ready = self.drain()
        if self._exact or figures.device.type != "cuda":
            return [*ready, (figures.double().tolist(), payload)]
        numbers = torch.empty(figures.shape, dtype=figures.dtype, pin_memory=True)
        numbers.copy_(figures, non_blocking=True)
        arrival = torch.cuda.Event()
        arrival.record()
        self._copy = numbers, arrival, payload
        return ready

    def drain(self) -> list[tuple[list[float], Payload]]:
        """Wait for the figures that are still on their way, and return them."""
        if self._copy is None:
            return []
        numbers, arrival, payload = self._copy
        self._copy = None
        arrival.synchronize()
        return [(numbers.double().tolist(), payload)]
