"""Figures from the device, read late so that no step waits for it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from swell.gradients.current_stream import CurrentStream

Payload = TypeVar("Payload")

_TOGETHER = 64  # the most figures that wait for each other
_WAIT_S = 0.25  # the longest that they wait, so that figures of long steps do not
_UNDER_WAY = 4  # lots of figures under way; one more, and the device is waited for


class _Part(NamedTuple, Generic[Payload]):
    """The next figures of a copy."""

    size: int
    known: bool  # False where the script has written to them before they were copied
    payload: Payload


@dataclass(slots=True)
class _Lot(Generic[Payload]):
    """Figures that are on their way to the host together."""

    arrival: Any  # the event after the latest of them
    copies: list[tuple[Tensor, list[_Part[Payload]]]]
    urgent: bool  # whether the next push waits for them


class LateReadings(Generic[Payload]):
    """Turns small tensors into numbers, each handed out once, in order, with the payload that belongs to it.

    On the CPU, or with ``exact=True``, that happens at once. From an accelerator a tensor is copied to pinned memory.
    Urgent figures are handed out with the next push, by which time the copy is long done. Others travel a few together
    and are handed out with the first push that finds them there: a host that waited for them could not be ahead of the
    device, and every delay of the one would be the other's too. Memory and events are used again, because making
    them takes longer than the copy. Figures that stay where they are, as mostly a loss does, are not even copied one by
    one.
    """

    def __init__(self, *, exact: bool) -> None:
        self._exact = exact
        self._held: list[tuple[Sequence[Tensor], list[int], Payload]] = []  # figures that stay, writes to them so far
        self._may_hold = True  # until the script is seen to write to one of them
        self._copies: list[tuple[Tensor, list[_Part[Payload]]]] = []  # queued after the latest lot
        self._marked_at = 0.0  # when that was
        self._lots: deque[_Lot[Payload]] = deque()
        self._waits = False  # whether one of them is urgent
        self._pinned: dict[tuple[int, torch.dtype], list[Tensor]] = {}  # memory that is free, by its size
        self._events: list[Any] = []  # that are free
        self._current: CurrentStream | None = None
        self._stream: Any = None  # that the copies are queued on

    def push(self, figures: Tensor, payload: Payload, *, urgent: bool = True) -> list[tuple[list[float], Payload]]:
        """Take new figures, one number or a list; return those that can be read without waiting, oldest first.

        Figures that are not ``urgent`` may wait for those of the next few steps, if steps are short.
        """
        if self._exact or not figures.is_cuda:
            return [*self.drain(), (figures.reshape(-1).tolist(), payload)]
        ready = self._ask(figures.device)
        if self._held:
            self._gather()
        self._copy(figures, [_Part(figures.numel(), True, payload)])  # now: it may be written over later
        if urgent or self._are_enough(len(self._copies)):
            self._mark(urgent=urgent)
        return ready

    def hold(self, figures: Sequence[Tensor], payload: Payload) -> list[tuple[list[float], Payload]]:
        """As ``push`` of some single numbers that are not urgent, and that nobody is expected to write to.

        Where somebody has, they are handed out as an empty list, and later ones are copied at once.
        """
        if self._exact or not self._may_hold or not figures[0].is_cuda:
            return self.push(_joined(figures), payload, urgent=False)
        ready = self._ask(figures[0].device)
        self._held.append((figures, [figure._version for figure in figures], payload))
        if self._are_enough(len(self._held)):
            self._mark(urgent=False)
        return ready

    def drain(self) -> list[tuple[list[float], Payload]]:
        """Wait for the figures that are still on their way, and return them."""
        if not self._held and not self._copies and not self._lots:
            return []
        self._mark(urgent=True)
        return self._arrived()

    def _ask(self, device: torch.device) -> list[tuple[list[float], Payload]]:
        """What has arrived before new figures are taken; asked once a lot, because it takes as long as to copy."""
        if self._current is None:
            self._current = CurrentStream(device)
        stream = self._current.get()
        if stream is not self._stream:
            self._mark(urgent=True)
            self._stream = stream
        return self._arrived() if self._waits or not (self._copies or self._held) else []

    def _are_enough(self, count: int) -> bool:
        return count >= _TOGETHER or time.perf_counter() - self._marked_at >= _WAIT_S

    def _copy(self, figures: Tensor, parts: list[_Part[Payload]]) -> None:
        count = figures.numel()
        size = 1 << (count - 1).bit_length()  # a few sizes for all, because new memory takes longer than the copy
        free = self._pinned.get((size, figures.dtype))
        memory = free.pop() if free else torch.empty(size, dtype=figures.dtype, pin_memory=True)
        (memory if count == size else memory[:count]).copy_(figures.reshape(-1), non_blocking=True)
        self._copies.append((memory, parts))

    def _gather(self) -> None:
        """Copy the figures that were held, all at once."""
        held, self._held = self._held, []
        parts = [
            _Part(len(figures), [figure._version for figure in figures] == versions, payload)
            for figures, versions, payload in held
        ]
        self._may_hold = all([part.known for part in parts])
        # Another stream than the current one only where that was changed since; to enter it takes as long as to copy.
        assert self._current is not None, "figures are held by whoever has asked for the stream"
        with nullcontext() if self._current.get() is self._stream else torch.cuda.stream(self._stream):
            self._copy(_joined([figure for figures, _, _ in held for figure in figures]), parts)

    def _mark(self, *, urgent: bool) -> None:
        """Make a lot of the copies that were queued."""
        if self._held:
            self._gather()
        if not self._copies:
            if urgent and self._lots:
                self._lots[-1].urgent = self._waits = True
            return
        arrival = self._events.pop() if self._events else torch.cuda.Event()
        arrival.record(self._stream)
        self._lots.append(_Lot(arrival, self._copies, urgent))
        self._waits = self._waits or urgent
        self._copies, self._marked_at = [], time.perf_counter()

    def _arrived(self) -> list[tuple[list[float], Payload]]:
        """What is there; up to the latest urgent lot, and if too many are under way, what is waited for."""
        awaited = len(self._lots) - _UNDER_WAY
        if self._waits:
            awaited = max([awaited, *(number for number, lot in enumerate(self._lots, 1) if lot.urgent)])
            self._waits = False
        read: list[tuple[list[float], Payload]] = []
        while self._lots and (awaited > 0 or self._lots[0].arrival.query()):
            lot = self._lots.popleft()
            if awaited > 0:
                lot.arrival.synchronize()
            awaited -= 1
            self._events.append(lot.arrival)
            for memory, parts in lot.copies:
                values = iter(memory.tolist())
                for part in parts:
                    figures = list(islice(values, part.size))
                    read.append((figures if part.known else [], part.payload))
                self._pinned.setdefault((len(memory), memory.dtype), []).append(memory)
        return read


def _joined(figures: Sequence[Tensor]) -> Tensor:
    """Single numbers as one list."""
    return torch.stack([figure.reshape(()) for figure in figures])
