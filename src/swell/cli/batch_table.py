"""What each batch is worth: step times as measured, or else as predicted by the law fitted to them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from swell.core.goodput import Candidates
from swell.core.layout_times import SURE
from swell.core.moments import efficiency
from swell.core.throughput import fit
from swell.core.types import StepSummary
from swell.errors import ConfigError
from swell.telemetry.price import Estimate

_EXTRA_KEYS = ("batch", "error")  # keys of a rehearsed layout that are not in its summary
_BETWEEN = 2  # turns of other layouts between two of the base batch
_WIDEST, _OTHERS = 9, 3  # layouts to measure: batches in as few passes as possible, and others
Times = Mapping[tuple[int, int], float]  # seconds per step, by micro-batch and accumulation


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """One layout."""

    batch: int
    micro: int
    accumulation: int
    samples_s: float
    measured: bool
    error: float | None  # relative, one standard deviation; None if there were too few measurements
    efficiency: float | None  # None if the noise is not known
    goodput: float | None
    efficiency_at_least: float  # by the lower end of the noise's interval; the batch's worst where it is not known
    efficiency_at_most: float  # by the upper end

    @property
    def sure(self) -> bool:
        """Whether it was measured with a small error."""
        return self.measured and self.error is not None and self.error <= SURE

    @property
    def worth(self) -> float:
        """The figure to compare: goodput, or samples per second if the noise is not known."""
        return self.samples_s if self.goodput is None else self.goodput

    @property
    def interval(self) -> tuple[float, float]:
        """What it is worth at least and at most, by two standard errors of its time; anything if they are not known."""
        if self.error is None:
            return 0.0, float("inf")
        low, high = self.samples_s * self.efficiency_at_least, self.samples_s * (self.efficiency or 1.0)
        return low / (1 + 2 * self.error), high / max(1e-9, 1 - 2 * self.error)

    def is_surely_better_than(self, base: BatchRow) -> bool:
        """Whether it was measured, and its interval lies above that of the base, which was measured too."""
        return self.measured and base.measured and self.interval[0] > base.interval[1]

    def is_beaten_by(self, other: BatchRow) -> bool:
        """Whether the other takes a larger step in no more time."""
        return other.batch > self.batch and other.batch / other.samples_s <= self.batch / self.samples_s

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        values = asdict(self)
        bounds = [values.pop("efficiency_at_least"), values.pop("efficiency_at_most")]
        return {**values, "efficiency_interval": bounds, "sure": self.sure}

    @property
    def samples_to_target(self) -> Estimate | None:
        """Samples over those of the base batch, with bounds by the noise's interval; None if the noise is not known."""
        if self.efficiency is None:
            return None
        return Estimate(1 / self.efficiency, 1 / self.efficiency_at_most, 1 / self.efficiency_at_least)

    def time_to_target(self, base: BatchRow) -> Estimate:
        """Time over that of the base batch; bounds by the noise's interval and two standard errors of both times."""
        value = base.worth / self.worth
        if self is base:
            return Estimate(1.0, 1.0, 1.0)
        if self.error is None or base.error is None:
            return Estimate(value, 0.0, float("inf"))
        off = 1 + 2 * math.hypot(self.error, base.error)
        samples = self.samples_to_target or Estimate(1.0, 1.0, 1.0)
        return Estimate(value, value * samples.low / samples.value / off, value * samples.high / samples.value * off)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTable:
    """All layouts, smallest batch first."""

    rows: tuple[BatchRow, ...]
    base: int
    noise_sure: bool

    @property
    def fastest(self) -> list[BatchRow]:
        """The best layout of each batch; for the base batch the best measured one, because all are compared with it.

        A batch that takes no less time than a larger one is left out: nobody would choose it.
        """
        best_rows: dict[int, BatchRow] = {}
        for row in self.rows:
            rank, best = (row.batch == self.base and row.measured, row.worth), best_rows.get(row.batch)
            if best is None or rank > (best.batch == self.base and best.measured, best.worth):
                best_rows[row.batch] = row
        rows = list(best_rows.values())
        return [row for row in rows if row.batch == self.base or not any(row.is_beaten_by(other) for other in rows)]

    @property
    def reference(self) -> BatchRow:
        """The row that the others are relative to: the base batch, or the smallest one if that cannot be laid out."""
        rows = self.fastest
        return next((row for row in rows if row.batch == self.base), rows[0])

    @property
    def best(self) -> BatchRow:
        """The fastest way to the target of those surely better than the base; the base itself if there is none."""
        base = self.reference
        better = [row for row in self.fastest if row.is_surely_better_than(base)]
        return max(better, key=lambda row: (row.interval[0], row.worth), default=base)


def layouts_to_try(layouts: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Which of these (batch, micro-batch) pairs to measure, smallest batch first.

    Mostly batches with their largest micro-batch, which is usually the fastest; always the smallest batch; and a few
    others, to measure the cost of accumulation.

    >>> layouts_to_try([(16, 16), (16, 8), (32, 32), (32, 16)])
    ((16, 16), (16, 8), (32, 32), (32, 16))
    """
    widest: dict[int, int] = {}
    for batch, micro in layouts:
        widest[batch] = max(micro, widest.get(batch, 0))
    others = [layout for layout in layouts if layout not in widest.items()]
    choice = {*_spread(list(widest.items()), _WIDEST), *_spread(others, _OTHERS)}
    return tuple(layout for layout in layouts if layout in choice)


def with_base_between(layouts: Sequence[tuple[int, int]], base: int) -> tuple[tuple[int, int], ...]:
    """The layouts to take turns with, the base batch again after every second one: all others are compared with it.

    >>> with_base_between([(16, 16), (32, 32), (48, 48), (64, 64)], base=16)
    ((16, 16), (32, 32), (48, 48), (16, 16), (64, 64))
    """
    first = next((layout for layout in layouts if layout[0] == base), layouts[0])
    others = [layout for layout in layouts if layout != first]
    turns = [first]
    for number, layout in enumerate(others, start=1):
        turns += [layout, first] if number % _BETWEEN == 0 and number < len(others) else [layout]
    return tuple(turns)


def _spread(layouts: Sequence[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """At most ``most`` of the layouts, evenly spread from the first to the last."""
    if len(layouts) <= most:
        return list(layouts)
    return [layouts[round(i * (len(layouts) - 1) / (most - 1))] for i in range(most)]


def batch_table(candidates: Candidates, findings: Mapping[str, Any], *, replicas: int, base: int) -> BatchTable:
    """A row for each candidate, from the findings of a rehearsal."""
    if not findings["profile"]:
        raise ConfigError("no layout was timed; expected each to run more than once. Give a larger --seconds.")
    profile = findings["profile"]
    points = [StepSummary(**{k: v for k, v in layout.items() if k not in _EXTRA_KEYS}) for layout in profile]
    times = {(point.micro_batch, point.accumulation): point.step_s for point in points}
    measured = {
        (layout["batch"], layout["micro_batch"], layout["accumulation"]): (layout["step_s"], layout["error"])
        for layout in profile
    }
    noise = findings["noise"]
    scale = noise["noise"] / noise["signal"] if noise and noise["signal"] > 0 else float("inf")
    least = max(0.0, (noise.get("interval") or [scale])[0] or 0.0) if noise else 0.0
    most = _upper_end(noise) if noise else float("inf")
    law, power = fit(points), findings.get("worth_power", 1.0)
    rows = []
    for layout in zip(
        candidates.global_batch.tolist(), candidates.micro_batch.tolist(), candidates.accumulation.tolist(), strict=True
    ):
        batch, micro, accumulation = layout
        forecast = law.predict(replicas=replicas, nodes=1, micro_batch=micro, accumulation=accumulation)
        prediction = within(float(forecast.step_s), (micro, accumulation), times), float(forecast.error)
        seconds, error = measured.get(layout, prediction)
        eff = efficiency(float(batch), base_batch=base, noise_scale=scale, power=power) if noise else None
        rows.append(
            BatchRow(
                batch=batch,
                micro=micro,
                accumulation=accumulation,
                samples_s=batch / seconds,
                measured=layout in measured,
                error=error,
                efficiency=eff,
                goodput=None if eff is None else eff * batch / seconds,
                efficiency_at_least=efficiency(
                    float(batch), base_batch=base, noise_scale=min(least, scale), power=power
                ),
                efficiency_at_most=efficiency(float(batch), base_batch=base, noise_scale=max(most, scale), power=power),
            )
        )
    return BatchTable(rows=tuple(rows), base=base, noise_sure=noise is not None and noise["sure"])


def _upper_end(noise: Mapping[str, Any]) -> float:
    """The upper end of the noise's interval; infinite if there is none."""
    high = (noise.get("interval") or [None, None])[1]
    return float("inf") if high is None else max(0.0, high)


def within(seconds: float, layout: tuple[int, int], measured: Times) -> float:
    """A predicted time, limited by the times of layouts with less and with more work; unchanged if those disagree.

    >>> within(0.5, (32, 1), {(24, 1): 0.1, (32, 8): 0.3})
    0.3
    """
    micro, accumulation = layout
    less = [time for (m, a), time in measured.items() if m <= micro and a <= accumulation]
    more = [time for (m, a), time in measured.items() if m >= micro and a >= accumulation]
    low, high = max(less, default=0.0), min(more, default=float("inf"))
    return min(max(seconds, low), high) if low <= high else seconds
