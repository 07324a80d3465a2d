"""How long a run will still take, and how sure that is."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from swell.telemetry.run_summary import duration

_LEAST_STEPS, _LEAST_S = 5, 2.0
_PARTS = (1.0, 0.5, 0.25, 0.125)  # of the time so far, each ending now


class TimeLeft(NamedTuple):
    """Seconds to the end: the best guess and the range in which earlier speeds would put it."""

    seconds: float
    low: float
    high: float

    def __str__(self) -> str:
        """In words; as a range where the speeds differ by more than a tenth.

        >>> str(TimeLeft(600.0, 590.0, 610.0)), str(TimeLeft(600.0, 500.0, 900.0))
        ('10:00 min', '8:20 to 15:00 min')
        """
        low, high = duration(self.low), duration(self.high)
        if self.high <= 1.1 * self.low or low == high:
            return duration(self.seconds)
        number, _, unit = low.partition(" ")
        return f"{number} to {high}" if high.endswith(f" {unit}") else f"{low} to {high}"


def time_left(active: Sequence[float], done: Sequence[float], total: float) -> TimeLeft | None:
    """The time until ``done`` reaches ``total``; None while too little was seen.

    ``active`` are the seconds of the run at each step, with everything that takes time between steps: saving, waiting,
    evaluation, resizing. The speeds of the whole run, its last half, quarter and eighth give a range. The last quarter
    gives the guess, because batch and workers may have changed before.
    """
    if not active:
        return None
    remaining, now = total - done[-1], active[-1]
    if remaining <= 0:
        return TimeLeft(0.0, 0.0, 0.0)
    began = active[0]
    if len(active) < _LEAST_STEPS or now - began < _LEAST_S:
        return None
    seconds: list[float] = []
    for part in _PARTS:
        first = min(bisect_left(active, now - part * (now - began)), len(active) - 2)
        passed, gained = now - active[first], done[-1] - done[first]
        if passed > 0 and gained > 0:
            seconds.append(remaining * passed / gained)
    if not seconds:
        return None
    guess = seconds[2] if len(seconds) == len(_PARTS) else seconds[-1]
    return TimeLeft(guess, min(seconds), max(seconds))
