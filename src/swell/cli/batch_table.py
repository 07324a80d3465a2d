"""What each batch would bring: times as measured, and by the law fitted to them where they were not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from swell.core.goodput import Candidates
from swell.core.layout_times import SURE
from swell.core.moments import efficiency
from swell.core.throughput import fit
from swell.core.types import StepSummary
from swell.errors import ConfigError

_MORE = ("batch", "error")  # what a rehearsal says of a layout beside its summary
_WIDEST, _OTHERS = 9, 3  # layouts to measure: batches in as few passes as they allow, and others
Times = Mapping[tuple[int, int], float]  # seconds a step takes, by micro-batch and accumulation


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One layout."""

    batch: int
    micro: int
    accumulation: int
    samples_s: float
    measured: bool
    error: float | None  # relative, one standard deviation; None where it was measured too seldom to tell
    efficiency: float | None  # None where nothing is known of the noise
    goodput: float | None

    @property
    def sure(self) -> bool:
        """Whether it was measured, and well enough."""
        return self.measured and self.error is not None and self.error <= SURE

    @property
    def worth(self) -> float:
        """What is compared: goodput, or samples a second where the noise is not known."""
        return self.samples_s if self.goodput is None else self.goodput

    @property
    def at_least(self) -> float:
        """What it is worth less its error; 0 where that is not known."""
        return 0.0 if self.error is None else self.worth * max(0.0, 1 - self.error)

    def is_beaten_by(self, other: Row) -> bool:
        """Whether the other makes a larger step in no more time."""
        return other.batch > self.batch and other.batch / other.samples_s <= self.batch / self.samples_s

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "sure": self.sure}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTable:
    """All layouts, smallest batch first."""

    rows: tuple[Row, ...]
    base: int
    noise_sure: bool

    @property
    def fastest(self) -> list[Row]:
        """Of each batch its best layout; of the base batch the best that was measured, for all are compared with it.

        A batch that takes no less time than a larger one is left out: nobody would choose it.
        """
        found: dict[int, Row] = {}
        for row in self.rows:
            rank, best = (row.batch == self.base and row.measured, row.worth), found.get(row.batch)
            if best is None or rank > (best.batch == self.base and best.measured, best.worth):
                found[row.batch] = row
        shown = list(found.values())
        return [row for row in shown if row.batch == self.base or not any(row.is_beaten_by(other) for other in shown)]

    @property
    def reference(self) -> Row:
        """The row that the others are relative to: the base batch's, or where that cannot be laid out the smallest."""
        shown = self.fastest
        return next((row for row in shown if row.batch == self.base), shown[0])

    @property
    def best(self) -> Row:
        """The fastest way to the target, each row less its error: a figure nobody can rely on is no advice."""
        return max(self.fastest, key=lambda row: (row.at_least, row.worth))


def layouts_to_try(layouts: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Which of these (batch, micro-batch) to measure, smallest batch first.

    Mostly batches with their largest micro-batch, which tends to be the fastest; the smallest batch always, and some
    others, without which nobody knew what accumulation costs.

    >>> layouts_to_try([(16, 16), (16, 8), (32, 32), (32, 16)])
    ((16, 16), (16, 8), (32, 32), (32, 16))
    """
    widest: dict[int, int] = {}
    for batch, micro in layouts:
        widest[batch] = max(micro, widest.get(batch, 0))
    others = [layout for layout in layouts if layout not in widest.items()]
    tried = {*_spread(list(widest.items()), _WIDEST), *_spread(others, _OTHERS)}
    return tuple(layout for layout in layouts if layout in tried)


def _spread(layouts: Sequence[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """At most so many, from the first to the last."""
    if len(layouts) <= most:
        return list(layouts)
    return [layouts[round(i * (len(layouts) - 1) / (most - 1))] for i in range(most)]


def batch_table(found: Candidates, findings: Mapping[str, Any], *, replicas: int, base: int) -> BatchTable:
    """A row for each candidate, from what a rehearsal found."""
    if not findings["profile"]:
        raise ConfigError("no layout ran often enough to be timed. Give --seconds more.")
    points = [StepSummary(**{k: v for k, v in seen.items() if k not in _MORE}) for seen in findings["profile"]]
    times = {(point.micro_batch, point.accumulation): point.step_s for point in points}
    measured = {
        (seen["batch"], seen["micro_batch"], seen["accumulation"]): (seen["step_s"], seen["error"])
        for seen in findings["profile"]
    }
    noise = findings["noise"]
    scale = noise["noise"] / noise["signal"] if noise and noise["signal"] > 0 else float("inf")
    law = fit(points)
    rows = []
    for layout in zip(
        found.global_batch.tolist(), found.micro_batch.tolist(), found.accumulation.tolist(), strict=True
    ):
        batch, micro, accumulation = layout
        guess = law.predict(replicas=replicas, nodes=1, micro_batch=micro, accumulation=accumulation)
        predicted = within(float(guess.step_s), (micro, accumulation), times), float(guess.error)
        seconds, error = measured.get(layout, predicted)
        eff = efficiency(float(batch), base_batch=base, noise_scale=scale) if noise else None
        rows.append(
            Row(
                batch=batch,
                micro=micro,
                accumulation=accumulation,
                samples_s=batch / seconds,
                measured=layout in measured,
                error=error,
                efficiency=eff,
                goodput=None if eff is None else eff * batch / seconds,
            )
        )
    return BatchTable(rows=tuple(rows), base=base, noise_sure=noise is not None and noise["sure"])


def within(seconds: float, layout: tuple[int, int], measured: Times) -> float:
    """A predicted time brought between those of layouts that do less and that do more; as it is where they disagree.

    >>> within(0.5, (32, 1), {(24, 1): 0.1, (32, 8): 0.3})
    0.3
    """
    micro, accumulation = layout
    less = [time for (m, a), time in measured.items() if m <= micro and a <= accumulation]
    more = [time for (m, a), time in measured.items() if m >= micro and a >= accumulation]
    low, high = max(less, default=0.0), min(more, default=float("inf"))
    return min(max(seconds, low), high) if low <= high else seconds
