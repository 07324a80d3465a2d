"""What a run took, in time and samples, beside the base run that it was worth."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from swell.core.events import Event, RunStarted, Stepped
from swell.core.moments import gain
from swell.core.types import Moments

_FEWEST, _MOST = 8, 512  # steps at the base batch that its time is the median of
_HALF_NORMAL, _MEDIAN = 1.4826, 1.2533  # a deviation from a median one, and the error of a median from a deviation


class Estimate(NamedTuple):
    """A figure with its bounds."""

    value: float
    low: float
    high: float

    def words(self, digits: int = 2) -> str:
        """The figure, and its bounds if they differ from it when they are rounded.

        >>> Estimate(1.131, 1.06, 1.22).words(), Estimate(1.0, 1.0, 1.0).words()
        ('1.13 (1.06 to 1.22)', '1.00')
        """
        value, low, high = (f"{number:,.{digits}f}" for number in self)
        return value if low == value == high else f"{value} ({low} to {high})"


@dataclass
class Price:
    """Counts what steps took and what they were worth.

    Worth is counted by the run's own law, with bounds by the 95 % interval of the noise in each step: all steps at its
    lower end, and all at its upper one. Where nothing is known of the noise, a step is worth between one base step and
    its samples. The base run's time is its steps times the median time of this run's steps at the base batch.
    """

    base_batch: int = 1
    worth_power: float = 1.0
    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    worth: float = 0.0
    least: float = 0.0
    most: float = 0.0
    base_s: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST))

    def take(self, event: Event) -> None:
        """Count an event."""
        if isinstance(event, RunStarted):
            self.base_batch = event.base_batch
            self.worth_power = float(event.settings.get("worth_power") or 1.0)
        elif isinstance(event, Stepped):
            noise = (event.noise_scale, event.noise_low, event.noise_high)
            self.add(batch=event.global_batch, worth=event.gain, seconds=event.step_s, noise=noise)

    def add(
        self, *, batch: float, worth: float, seconds: float, noise: tuple[float | None, float | None, float | None]
    ) -> None:
        """Count a step: what it was worth in base steps, and the noise scale with its interval, in samples."""
        self.steps += 1
        self.samples += int(batch)
        self.seconds += seconds
        self.worth += worth
        least, most = self._bounds(batch / self.base_batch, worth, noise)
        self.least += least
        self.most += most
        if batch == self.base_batch:
            self.base_s.append(seconds)

    def _bounds(
        self, scale: float, worth: float, noise: tuple[float | None, float | None, float | None]
    ) -> tuple[float, float]:
        if scale == 1:
            return worth, worth
        value, low, high = (_or(one, other) for one, other in zip(noise, (math.nan, 0.0, math.inf), strict=True))
        least, most = sorted((self._law(scale, low), self._law(scale, high)))
        if math.isfinite(value):  # the law by which it was counted may be by other moments: only the ratio is taken
            middle = self._law(scale, value)
            least, most = worth * least / middle, worth * most / middle
        first, last = sorted((1.0, scale))
        return min(worth, max(first, least)), max(worth, min(last, most))

    def _law(self, scale: float, noise_scale: float) -> float:
        moments = Moments(0.0, 1.0) if math.isinf(noise_scale) else Moments(1.0, noise_scale)
        return scale ** (1 - self.worth_power) * gain(scale, moments, base_batch=self.base_batch) ** self.worth_power

    @property
    def samples_ratio(self) -> Estimate | None:
        """Samples over those of the base run; None before the first step."""
        if not self.least > 0:
            return None
        return Estimate(*(self.samples / self.base_batch / worth for worth in (self.worth, self.most, self.least)))

    @property
    def time_ratio(self) -> Estimate | None:
        """Time of the steps over that of the base run; None if too few steps at the base batch were timed."""
        if len(self.base_s) < _FEWEST or not self.least > 0:
            return None
        times = np.fromiter(self.base_s, float)
        base_s = float(np.median(times))
        if base_s <= 0:
            return None
        error = _HALF_NORMAL * float(np.median(np.abs(times - base_s))) * _MEDIAN / math.sqrt(len(times))
        slow, fast = base_s + 2 * error, max(base_s - 2 * error, 0.5 * base_s)
        return Estimate(
            self.seconds / (self.worth * base_s),
            self.seconds / (self.most * slow),
            self.seconds / (self.least * fast),
        )

    def words(self) -> str | None:
        """All figures in a sentence; None for a run at the base batch, which is its own price."""
        samples, time = self.samples_ratio, self.time_ratio
        if samples is None or abs(self.worth - self.steps) < 0.5:
            return None
        worth = Estimate(self.worth, self.least, self.most).words(0)
        how_long = "its time is not known" if time is None else f"{time.words()} of its time"
        return f"worth {worth} steps of {self.base_batch}: {samples.words()} times the base run's samples, {how_long}"


def price_of(columns: dict[str, list[float]], *, base_batch: int, worth_power: float) -> Price:
    """The price of steps that are given as columns of a run's model."""
    price = Price(base_batch=base_batch, worth_power=worth_power)
    names = ("batch", "gain", "step_s", "noise", "noise_low", "noise_high")
    rows: Iterable[tuple[float, ...]] = zip(*(columns[name] for name in names), strict=True)
    for batch, worth, seconds, *noise in rows:
        price.add(batch=batch, worth=worth, seconds=seconds, noise=(noise[0], noise[1], noise[2]))
    return price


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None or math.isnan(value) else value
