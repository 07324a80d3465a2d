"""What steps of each layout take, measured turn by turn, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from swell.core.types import StepSummary, StepTimes

SURE = 0.02  # relative standard error up to which a figure counts as sure
_LEAST_TURNS = 5  # before it can be: fewer may all have met the same bad moment
Layout = tuple[int, int, int, int, int]  # global batch, replicas, nodes, micro-batch, accumulation


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What steps of one layout take."""

    batch: int
    summary: StepSummary
    error: float  # relative standard error of its time; infinite after a few turns


@dataclass
class LayoutTimes:
    """Collects step times; each turn of a layout counts once, by its median, and a layout by the median of its turns.

    Steps of one turn share what else the machine does at that moment, so they are no independent witnesses; turns are.
    """

    _turns: dict[Layout, dict[int, list[float]]] = field(default_factory=dict)
    _sync_s: dict[Layout, list[float]] = field(default_factory=dict)

    def add(self, times: StepTimes, *, batch: int, turn: int) -> None:
        """Take in a step of this turn; a time that is not finite and above zero is left out."""
        if not 0 < times.step_s < math.inf:
            return
        shape = (batch, times.replicas, times.nodes, times.micro_batch, times.accumulation)
        self._turns.setdefault(shape, {}).setdefault(turn, []).append(times.step_s)
        self._sync_s.setdefault(shape, []).append(times.sync_s)

    def measured(self) -> list[Measured]:
        """One figure for each layout."""
        found = []
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
            found.append(Measured(batch=batch, summary=summary, error=standard_error(medians) / summary.step_s))
        return found

    def sure(self, layouts: int) -> bool:
        """Whether so many layouts were measured, each with a standard error within 2 %."""
        found = self.measured()
        return len(found) >= layouts and all(one.error <= SURE for one in found)


def standard_error(values: Sequence[float]) -> float:
    """Of the median of these values, in their unit; infinite for fewer than five.

    Half the distance between the values sqrt(n) / 2 places below and above the middle: whatever the distribution, their
    number below its median has the standard deviation sqrt(n) / 2.

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
