"""Figures from the device, read one step late so that no step waits for it."""

from __future__ import annotations

from typing import Generic, TypeVar

import torch
from torch import Tensor

Payload = TypeVar("Payload")


class LateReadings(Generic[Payload]):
    """A queue of small tensors on their way to the host, each with what belongs to it.

    On the CPU, or with ``exact=True``, a figure can be read at once. From an accelerator it is copied to pinned
    memory and handed out when the next one is pushed, by which time the copy is long done.
    """

    def __init__(self, *, exact: bool) -> None:
        self._exact = exact
        self._waiting: list[tuple[Tensor, torch.cuda.Event | None, Payload]] = []

    def push(self, figures: Tensor, payload: Payload) -> list[tuple[list[float], Payload]]:
        """Take new figures; return those that can be read without waiting, oldest first."""
        if self._exact or figures.device.type != "cuda":
            return [(figures.double().tolist(), payload)]
        ready = self.drain()
        host = torch.empty(figures.shape, dtype=figures.dtype, pin_memory=True)
        host.copy_(figures, non_blocking=True)
        done = torch.cuda.Event()
        done.record()
        self._waiting.append((host, done, payload))
        return ready

    def drain(self) -> list[tuple[list[float], Payload]]:
        """Everything still under way; waits for it."""
        ready: list[tuple[list[float], Payload]] = []
        for host, done, payload in self._waiting:
            if done is not None:
                done.synchronize()
            ready.append((host.double().tolist(), payload))
        self._waiting.clear()
        return ready
