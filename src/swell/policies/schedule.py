"""A table of batch sizes: from here on this one, from there on that one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from swell.core.types import Observation
from swell.errors import ConfigError
from swell.policies.arguments import assign, number, samples, word
from swell.policies.position import UNITS, Unit, position

# An epoch and its part add up with a rounding error; a step that starts this close to a point has reached it.
_CLOSE = 1e-9


@dataclass(frozen=True, slots=True, init=False)
class Schedule:
    """Batch sizes from a table ``[(when, batch), ...]``: each holds from its point up to the next.

    ``unit`` is what the points count: ``"samples"``, ``"epochs"`` (parts of one included) or ``"fraction"`` of the
    run. The first point is 0 and points rise. A step that starts before a point keeps the old size, though it may
    reach past it. ``base`` is the batch the learning rate was tuned for, the first of the table unless you say
    otherwise.

    Fails (``ConfigError``, at the first step) when the unit needs a length nobody knows: a fraction of a run without an
    end, a part of an epoch of a stream.

    >>> from swell.policies import Schedule
    >>> Schedule([(0, 64), (5, 256), (7.5, 1024)], unit="epochs").base
    64
    """

    points: tuple[tuple[float, int], ...]
    unit: Unit
    base: int

    def __init__(self, points: Iterable[tuple[float, int]], *, unit: Unit = "samples", base: int | None = None) -> None:
        word(unit, "unit", UNITS)
        entries = enumerate(points) if isinstance(points, Iterable) else ()
        table = tuple(_point(index, entry) for index, entry in entries)
        if not table:
            raise ConfigError(
                f"the schedule is {points!r}; expected a list of pairs (when, batch). Give at least [(0, batch)]."
            )
        if table[0][0] != 0:
            raise ConfigError(
                f"the schedule begins at {table[0][0]:g} {unit} and says nothing of the steps before; expected 0 as "
                f"its first point. Put (0, batch) in front, for example (0, {table[0][1]})."
            )
        for (before, _), (after, _) in pairwise(table):
            if after <= before:
                raise ConfigError(
                    f"the schedule's points go from {before:g} to {after:g}; expected them to rise. "
                    "Sort them, and give each point one batch."
                )
        if unit == "fraction" and table[-1][0] > 1:
            raise ConfigError(
                f"the schedule has a point at {table[-1][0]:g} of the run; a fraction lies between 0 and 1. "
                "Use unit='epochs' or unit='samples' for such a point."
            )
        assign(self, points=table, unit=unit, base=samples(table[0][1] if base is None else base, "base"))

    def batch(self, seen: Observation) -> int:
        starts = [when for when, _ in self.points]
        whole_epochs = seen.epoch_size is None and all(when == int(when) for when in starts)
        here = position(seen, self.unit, whole_epochs=whole_epochs)
        if self.unit != "samples":
            here += _CLOSE
        return self.points[bisect_right(starts, here) - 1][1]


def _point(index: int, entry: object) -> tuple[float, int]:
    try:
        when, size = entry  # pyright: ignore[reportGeneralTypeIssues]
    except (TypeError, ValueError):
        raise ConfigError(
            f"points[{index}] is {entry!r}; expected a pair (when, batch). Give for example (0, 64)."
        ) from None
    return number(when, f"points[{index}][0]", least=0), samples(size, f"points[{index}][1]")
