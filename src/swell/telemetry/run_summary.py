"""The newest figures of a run, collected from its events, and a short text for each."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from swell.core.events import EpochEnded, EpochStarted, Event, RunStarted, Stepped
from swell.telemetry.price import Price

_RECENT = 32  # steps the speed is averaged over


class SummaryField(NamedTuple):
    """A label and its value."""

    label: str
    value: str
    rank: int  # where the line is too long, fields with higher ranks are left out first


@dataclass
class RunSummary:
    """The newest figures of a run."""

    epoch: int = 0
    epochs: int | None = None
    samples: int = 0
    total_samples: int | None = None
    progress: float = 0.0
    total_progress: float | None = None
    batch: int | None = None
    replicas: int | None = None
    lr_factor: tuple[float, ...] = ()
    gain: float | None = None
    loss: float | None = None
    recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_RECENT))
    price: Price = field(default_factory=Price)

    def take(self, event: Event) -> None:
        """Update the figures."""
        self.price.take(event)
        if isinstance(event, RunStarted):
            self.samples, self.replicas = event.samples, event.replicas
        elif isinstance(event, EpochStarted):
            self.epoch, self.epochs, self.samples = event.epoch, event.epochs, event.samples
            self.total_samples, self.total_progress = event.total_samples, event.total_progress
        elif isinstance(event, EpochEnded):
            self.epoch = event.epoch
        elif isinstance(event, Stepped):
            self.epoch, self.samples, self.progress = event.epoch, event.samples, event.progress
            self.batch, self.replicas = event.global_batch, event.replicas
            self.lr_factor, self.gain, self.loss = event.lr_factor, event.gain, event.loss
            self.recent.append((event.global_batch, event.step_s))

    @property
    def done(self) -> float | None:
        """The fraction of the run that is done, 0 to 1; None if its length is not known."""
        if self.total_progress:
            return min(1.0, self.progress / self.total_progress)
        return min(1.0, self.samples / self.total_samples) if self.total_samples else None

    @property
    def samples_per_s(self) -> float | None:
        """Speed over the last steps; None before the first."""
        seconds = sum(step_s for _, step_s in self.recent)
        return sum(batch for batch, _ in self.recent) / seconds if seconds > 0 else None

    @property
    def left_s(self) -> float | None:
        """Seconds to the end at the present speed; None if the end or the speed is not known."""
        if self.total_progress or not self.total_samples or not self.samples_per_s:
            return None
        return max(0, self.total_samples - self.samples) / self.samples_per_s

    def title(self) -> str:
        """The epoch, counted from 1, and the number of epochs."""
        return f"epoch {self.epoch + 1}" + (f"/{self.epochs}" if self.epochs else "")

    def fields(self, *, times: str) -> list[SummaryField]:
        """The fields in the order in which they are shown; ``times`` is the sign before a factor."""
        fields = [self._count()]
        if self.batch is not None:
            fields.append(SummaryField("batch", f"{self.batch:,}", 0))
        if self.replicas is not None:
            fields.append(SummaryField("replicas", str(self.replicas), 3))
        if self.lr_factor:
            low, high = min(self.lr_factor), max(self.lr_factor)
            spread = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f}-{high:.2f}"
            fields.append(SummaryField("lr", times + spread, 2))
        if self.gain is not None:
            fields.append(SummaryField("gain", f"{self.gain:.2f}", 5))
        if self.samples_per_s is not None:
            fields.append(SummaryField("samples/s", compact(self.samples_per_s), 4))
        if self.loss is not None:
            fields.append(SummaryField("loss", f"{self.loss:.4g}", 1))
        if self.left_s is not None:
            fields.append(SummaryField("left", duration(self.left_s), 6))
        return fields

    def _count(self) -> SummaryField:
        if self.total_progress:
            return SummaryField("steps", f"{self.progress:,.0f}/{self.total_progress:,.0f}", 7)
        total = f"/{compact(self.total_samples)}" if self.total_samples else ""
        return SummaryField("samples", f"{compact(self.samples)}{total}", 7)


def compact(number: float) -> str:
    """A count in at most four digits and a letter.

    >>> [compact(n) for n in (7, 9_999, 10_000, 123_456, 59_999_999, 2.5)]
    ['7', '9,999', '10.0k', '123k', '60.0M', '2.5']
    """
    if number < 10 and number != int(number):
        return f"{number:.1f}"
    if round(number) < 10_000:
        return f"{round(number):,}"
    units = "kMGT"
    while (number := number / 1000) >= 999.5 and len(units) > 1:
        units = units[1:]
    return f"{number:.1f}{units[0]}" if number < 99.95 else f"{number:.0f}{units[0]}"


def duration(seconds: float) -> str:
    """Seconds in the largest fitting units.

    >>> [duration(s) for s in (0.2, 42, 61, 3_725, 100_000)]
    ['0.2 s', '42 s', '1:01 min', '1:02 h', '27:46 h']
    """
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"
