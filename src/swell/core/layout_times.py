"""Step times of layouts that take turns, and their errors, for ``swell tune``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from swell.core.types import StepSummary, StepTimes

SURE = 0.02  # relative standard error up to which a time counts as sure
_LEAST_TURNS = 5  # for a finite error: fewer turns may all have met the same bad moment
_Shape = tuple[int, int, int, int, int]  # global batch, replicas, nodes, micro-batch, accumulation


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutTime:
    """The time of steps of one layout."""

    batch: int
    summary: StepSummary
    error: float  # relative standard error of the time; infinite after fewer than five turns


@dataclass
class LayoutTimes:
    """Collects step times: a layout's time is the median over its turns, a turn's the median over its steps.

    Steps of one turn are not independent, because they share the machine's other load at that moment; turns are.
    """

    _turns: dict[_Shape, dict[int, list[float]]] = field(default_factory=dict)
    _sync_s: dict[_Shape, list[float]] = field(default_factory=dict)

    def add(self, times: StepTimes, *, batch: int, turn: int) -> None:
        """Add a step of this turn; a time that is not finite and above 0 is ignored."""
        if not 0 < times.step_s < math.inf:
            return
        shape = (batch, times.replicas, times.nodes, times.micro_batch, times.accumulation)
        self._turns.setdefault(shape, {}).setdefault(turn, []).append(times.step_s)
        self._sync_s.setdefault(shape, []).append(times.sync_s)

    def measured(self) -> list[LayoutTime]:
        """One time for each layout."""
        times = []
        for shape, turns in sorted(self._turns.items()):
            medians = [median(step_s) for step_s in turns.values()]
            batch, replicas, nodes, micro_batch, accumulation = shape
            summary = StepSummary(
                replicas=replicas,
                nodes=nodes,
                micro_batch=micro_batch,
                accumulation=accumulation,
                step_s=median(medians),
                count=sum(map(len, turns.values())),
                sync_s=median(self._sync_s[shape]),
            )
            times.append(LayoutTime(batch=batch, summary=summary, error=standard_error(medians) / summary.step_s))
        return times

    def sure(self, layouts: int) -> bool:
        """Whether this many layouts were measured, each with a standard error of at most 2 %."""
        times = self.measured()
        return len(times) >= layouts and all(time.error <= SURE for time in times)


def standard_error(values: Sequence[float]) -> float:
    """The standard error of the median of these values, in their unit; infinite for fewer than five.

    It is half the distance between the values sqrt(n) / 2 places below and above the middle. For any distribution, the
    number of values below its median has the standard deviation sqrt(n) / 2.

    >>> standard_error([3.0, 1.0, 2.0, 100.0, 2.0, 1.0, 3.0, 2.0, 2.0])
    0.25
    >>> standard_error([1.0, 1.0])
    inf
    """
    count = len(values)
    if count < _LEAST_TURNS:
        return math.inf
    middle, reach = (count - 1) / 2, math.sqrt(count) / 2
    low, high = np.interp([middle - reach, middle + reach], np.arange(count), np.sort(values))
    return float(high - low) / 2
