"""Changes of batch that come faster than the log should grow are written as one."""

from __future__ import annotations

import dataclasses
import math

from swell.core.events import BatchChanged


class DecisionBudget:
    """Holds back a change while the log has no room for it; the next one that is written stands for both.

    A change is one to several thousand bytes, because it holds all that the policy saw. A policy that decides now and
    then is never held back. One that moves the batch in every step is logged every few seconds, with what it saw then;
    the steps between have their batches in their own lines.
    """

    def __init__(self, *, burst: float = 60_000.0, rate: float = 14.0) -> None:
        self._burst, self._rate = burst, rate
        self._room, self._filled_at = burst, -math.inf
        self._held: BatchChanged | None = None

    def take(self, event: BatchChanged, size: int) -> BatchChanged | None:
        """The change to write now, of about ``size`` bytes, or None if it is held back."""
        held = self._held
        if held is not None:
            event = dataclasses.replace(
                event, before=held.before, micro_before=held.micro_before, changes=held.changes + event.changes
            )
        if event.time > self._filled_at:
            since = 0.0 if self._filled_at == -math.inf else event.time - self._filled_at
            self._room, self._filled_at = min(self._burst, self._room + self._rate * since), event.time
        self._held = event if self._room < size else None
        if self._held is not None:
            return None
        self._room -= size
        return event

    def release(self) -> BatchChanged | None:
        """The change that is held back, if any; it is to be written now."""
        held, self._held = self._held, None
        return held
