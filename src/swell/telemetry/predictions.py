"""What the policy's model of step times expected of each layout it chose, beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from swell.core.events import BatchChanged
from swell.core.throughput import fit
from swell.errors import SwellError
from swell.policies import observation_from_dict


class Predictions:
    """Predicted samples a second of the steps after each change of batch; remembers what it has computed."""

    def __init__(self, *, most: int = 100) -> None:
        self._most = most
        self._known: dict[tuple[float, int, int, int], float | None] = {}

    def speeds(self, changes: Sequence[BatchChanged], rows: Sequence[tuple[int, int, int, int]]) -> list[float | None]:
        """For each change the predicted speed of the row after it: (replicas, micro-batch, accumulation, batch).

        None where the policy had no step times yet, and for all but the latest changes.
        """
        skipped = max(0, len(changes) - self._most)
        pairs = list(zip(changes, rows, strict=True))[skipped:]
        return [None] * skipped + [self._speed(change, row) for change, row in pairs]

    def _speed(self, change: BatchChanged, row: tuple[int, int, int, int]) -> float | None:
        replicas, micro, accumulation, batch = row
        key = (change.time, replicas, micro, accumulation)
        if key not in self._known:
            try:
                seen = observation_from_dict(change.seen)
                predicted = fit(seen.profile).predict(
                    replicas=replicas, nodes=seen.nodes, micro_batch=micro, accumulation=accumulation
                )
                self._known[key] = batch / float(predicted.step_s)
            except (SwellError, ValueError, ZeroDivisionError, FloatingPointError):
                self._known[key] = None
        return self._known[key]
