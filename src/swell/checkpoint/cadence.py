"""When a checkpoint is due: by the clock, by samples or by steps, whichever comes first."""

from __future__ import annotations

from dataclasses import dataclass

from swell.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A moment of a run: seconds on any monotonic clock, samples and steps committed so far."""

    time_s: float
    samples: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """How often to save; without any period, never.

    Samples and steps count from the start of the run, not from the last save: with ``every_samples=1000`` a save is due
    when samples pass 1000, 2000, and so on, so a resumed run saves where the undisturbed one does. Clocks differ
    between replicas: let one replica decide by time for all.

    >>> Cadence(every_samples=1000).due(Mark(time_s=5, samples=1024, step=8), last=Mark(time_s=0, samples=0, step=0))
    True
    """

    every_s: float | None = None
    every_samples: int | None = None
    every_steps: int | None = None

    def __post_init__(self) -> None:
        for name in ("every_s", "every_samples", "every_steps"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value!r}; expected more than 0. Give None to leave it out.")

    def due(self, now: Mark, *, last: Mark) -> bool:
        """Whether to save now; ``last`` is the moment when the last save began (or the run's start)."""
        return (
            (self.every_s is not None and now.time_s - last.time_s >= self.every_s)
            or _passed(self.every_samples, last.samples, now.samples)
            or _passed(self.every_steps, last.step, now.step)
        )


def _passed(every: int | None, last: int, now: int) -> bool:
    """Whether a multiple of ``every`` lies after ``last``, up to and including ``now``."""
    return every is not None and now // every > last // every
