"""Where the time of a run went, from its events."""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from swell.core.events import Event, Resized, RunStarted, Saved, Stepped

KINDS = ("training", "statistics", "data", "saving", "resizing", "repeated", "other")
WORDS = {
    "training": "training",
    "statistics": "measuring gradients",
    "data": "waiting for data",
    "saving": "saving",
    "resizing": "resizing",
    "repeated": "steps done again",
    "other": "between steps: evaluation, your own code",
}
_RECENT = 64


@dataclass
class TimeAccount:
    """Seconds by what they were spent on; together they are the time of the run while it was not stopped.

    ``training`` is the time of steps without what follows. ``statistics`` is by how much steps whose gradients were
    measured took longer than their neighbours with the same layout. ``data`` is the wait for data inside steps.
    ``repeated`` are steps that had to be done again. ``other`` is what no event accounts for.
    """

    steps_s: float = 0.0
    statistics_s: float = 0.0
    data_s: float = 0.0
    saving_s: float = 0.0
    resizing_s: float = 0.0
    repeated_s: float = 0.0
    active_s: float = 0.0
    _last_time: float | None = None
    _plain: dict[tuple[int, int, int], deque[float]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=_RECENT))
    )

    def take(self, event: Event) -> None:
        """Add the next event."""
        if self._last_time is not None and not isinstance(event, RunStarted):
            self.active_s += max(0.0, event.time - self._last_time)
        self._last_time = event.time if self._last_time is None else max(self._last_time, event.time)
        if isinstance(event, RunStarted):
            self._last_time = event.time
        elif isinstance(event, Stepped):
            self._step(event)
        elif isinstance(event, Saved):
            self.saving_s += event.held_s
        elif isinstance(event, Resized):
            self.resizing_s += event.pause_s or 0.0

    def _step(self, event: Stepped) -> None:
        waited = min(event.data_s or 0.0, event.step_s)
        own = event.step_s - waited
        self.steps_s += event.step_s
        self.data_s += waited
        recent = self._plain[event.replicas, event.micro_batch, event.global_batch]
        if not event.measured:
            recent.append(own)
        elif len(recent) >= 4:
            self.statistics_s += max(0.0, min(own, own - statistics.median(recent)))

    def repeat(self, step_s: Iterable[float]) -> None:
        """These steps are taken back."""
        self.repeated_s += sum(step_s)

    def parts(self) -> dict[str, float]:
        """Seconds by ``KINDS``, all 0 or more."""
        steps = max(0.0, self.steps_s - self.data_s - self.statistics_s - self.repeated_s)
        known = {
            "training": steps,
            "statistics": self.statistics_s,
            "data": self.data_s,
            "saving": self.saving_s,
            "resizing": self.resizing_s,
            "repeated": min(self.repeated_s, self.steps_s),
        }
        return {**known, "other": max(0.0, self.active_s - sum(known.values()))}
