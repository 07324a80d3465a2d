"""A table of batch sizes, each from one point of the run up to the next."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from swell.core.counts import whole_number
from swell.core.types import Observation
from swell.errors import ConfigError
from swell.policies.arguments import assign, number, word
from swell.policies.position import UNITS, Unit, position

# Epoch + part of an epoch has a rounding error; a step that starts this close to a point has reached it.
_CLOSE = 1e-9


@dataclass(frozen=True, slots=True, init=False)
class Schedule:
    """Batch sizes from a table ``[(when, batch), ...]``: each holds from its point up to the next.

    Points are in ``unit``: ``"samples"``, ``"epochs"`` (parts of one included) or ``"fraction"`` of the run. The first
    point is 0, and points increase. A step that starts before a point keeps the old size, even if it ends after it.
    ``base`` is the batch the learning rate was tuned for, by default the first of the table.

    Raises ``ConfigError`` at the first step if the unit needs an unknown length: a fraction of a run without an end, a
    part of an epoch of a stream.

    >>> from swell.policies import Schedule
    >>> Schedule([(0, 64), (5, 256), (7.5, 1024)], unit="epochs").base
    64
    """

    points: tuple[tuple[float, int], ...]
    unit: Unit
    base: int

    def __init__(self, points: Iterable[tuple[float, int]], *, unit: Unit = "samples", base: int | None = None) -> None:
        word(unit, name="unit", known=UNITS)
        entries = enumerate(points) if isinstance(points, Iterable) else ()
        table = tuple(_point(index, entry) for index, entry in entries)
        if not table:
            raise ConfigError(
                f"points is {points!r}; expected a list of pairs (when, batch). Give at least [(0, batch)]."
            )
        if table[0][0] != 0:
            raise ConfigError(
                f"points[0][0] is {table[0][0]:g}; expected 0, the start of the run. Put (0, batch) first, for example "
                f"(0, {table[0][1]})."
            )
        for index, ((before, _), (after, _)) in enumerate(pairwise(table), start=1):
            if after <= before:
                raise ConfigError(
                    f"points[{index}][0] is {after:g}; expected more than {before:g}, the point before. Sort the "
                    "points, and give each of them one batch."
                )
        if unit == "fraction" and table[-1][0] > 1:
            raise ConfigError(
                f"points[-1][0] is {table[-1][0]:g}; expected a fraction of the run, 0 to 1. Use unit='epochs' or "
                "unit='samples'."
            )
        assign(self, points=table, unit=unit, base=whole_number(table[0][1] if base is None else base, name="base"))

    def batch(self, seen: Observation) -> int:
        starts = [when for when, _ in self.points]
        whole_epochs = seen.epoch_size is None and all(when == int(when) for when in starts)
        reached = position(seen, self.unit, whole_epochs=whole_epochs)
        if self.unit != "samples":
            reached += _CLOSE
        return self.points[bisect_right(starts, reached) - 1][1]


def _point(index: int, entry: object) -> tuple[float, int]:
    try:
        when, size = entry  # pyright: ignore[reportGeneralTypeIssues]
    except (TypeError, ValueError):
        raise ConfigError(
            f"points[{index}] is {entry!r}; expected a pair (when, batch). Give for example (0, 64)."
        ) from None
    return number(when, name=f"points[{index}][0]", at_least=0), whole_number(size, name=f"points[{index}][1]")
