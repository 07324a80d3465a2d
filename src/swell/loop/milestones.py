"""Round numbers of steps, samples, progress or seconds that a run passes, each noticed once, by all replicas alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from swell.errors import ConfigError

UNITS = ("steps", "samples", "progress", "seconds")
_ROUNDING = 1e-9  # progress is a sum of many gains


class Counts(NamedTuple):
    """How far a run is."""

    steps: int = 0
    samples: int = 0
    progress: float = 0.0
    seconds: float = 0.0  # that the run has taken, without the time between two processes


class Milestones:
    """What ``job.every`` asks: whether the latest step passed a multiple of a number.

    Each committed step covers the counts from the step before up to its own. A step that some replica had no part in,
    or that was committed after the user's code, cannot be asked about by all: the next one covers its counts too. The
    counts are saved, so a resumed run asks on where it was.

    Seconds are the first replica's, which every vote carries, so replicas agree on them too.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._from, self._to = Counts(), Counts()
        self._asked = True  # whether the user's code of all replicas could ask about ``_to``
        self._agreed_at = clock()  # this process's clock when ``_to`` was agreed on

    @property
    def seconds(self) -> float:
        """How long the run has taken by this process's clock, counted on from what was agreed last."""
        return self._to.seconds + self._clock() - self._agreed_at

    def pass_to(self, *, steps: int, samples: int, progress: float, seconds: float, askable: bool) -> None:
        """A step was committed; ``askable`` if the user's code of every replica is about to see that."""
        if self._asked:
            self._from = self._to
        self._to = Counts(steps, samples, progress, max(seconds, self._to.seconds))
        self._asked, self._agreed_at = askable, self._clock()

    def passed(self, unit: str, every: float) -> bool:
        """Whether the latest step passed a multiple of ``every``; the same however often it is asked."""
        if not self._asked:
            return False
        before, now = getattr(self._from, unit), getattr(self._to, unit)
        return _multiples(now, every) > _multiples(before, every)

    def state_dict(self) -> dict[str, Any]:
        """The counts."""
        return {"from": self._from._asdict(), "to": self._to._asdict(), "asked": self._asked}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from saved counts."""
        self._from, self._to = Counts(**state["from"]), Counts(**state["to"])
        self._asked, self._agreed_at = bool(state["asked"]), self._clock()


def checked_period(units: Mapping[str, float | None]) -> tuple[str, float]:
    """The one unit that was given, and its number."""
    given = {unit: value for unit, value in units.items() if value is not None}
    if len(given) == 1:
        ((unit, value),) = given.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf:
            return unit, value
    listed = ", ".join(f"{unit}={value!r}" for unit, value in given.items()) or "nothing"
    raise ConfigError(
        f"job.every was given {listed}; expected one of {', '.join(units)}, above 0. Call for example "
        "job.every(samples=50_000)."
    )


def _multiples(count: float, every: float) -> int:
    return math.floor(count / every * (1 + _ROUNDING))
