"""Traces of the number of workers over time, as recorded on spot markets."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from swell.errors import TraceError


@dataclass(frozen=True, slots=True)
class WorkerTrace:
    """Numbers of workers, each valid from its time to the next one; times are seconds from the start, rising."""

    times_s: tuple[float, ...]
    workers: tuple[int, ...]

    def at(self, time_s: float) -> int:
        """How many workers there are ``time_s`` after the start.

        >>> WorkerTrace((0.0, 60.0), (4, 2)).at(59.0)
        4
        """
        passed = [workers for start, workers in zip(self.times_s, self.workers, strict=True) if start <= time_s]
        return passed[-1] if passed else self.workers[0]

    def faster(self, factor: float) -> WorkerTrace:
        """The same trace, played ``factor`` times as fast."""
        if not factor > 0:
            raise TraceError(f"the speed of a trace is {factor}; expected a number above 0.")
        return WorkerTrace(tuple(time / factor for time in self.times_s), self.workers)


def read_worker_trace(path: str | os.PathLike[str]) -> WorkerTrace:
    """Read a trace of worker counts from a CSV file, in either of two formats.

    - Counts: the last two columns are a time in seconds and a number of workers (``time,workers``; ETH's GCP traces
      with an index before them). Other columns and a heading are skipped, and only changes are kept.
    - Events: a time in milliseconds, ``add`` or ``remove``, a node's name (Bamboo, Parcae); each node is one worker.

    The first time counts as 0. Raises ``TraceError`` if the file is empty, goes back in time or has other content.
    """
    try:
        rows = [row for row in csv.reader(Path(path).read_text().splitlines()) if any(cell.strip() for cell in row)]
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(
            f"trace {path} cannot be read ({error}); expected a CSV file of times and worker counts. Check the path."
        ) from error
    if rows and not _is_number(rows[0][-1]) and not _is_event(rows[0]):
        rows = rows[1:]  # a heading
    if not rows:
        raise TraceError(f"trace {path} is empty; expected lines of time,workers or of milliseconds,add|remove,node.")
    points = _from_events(path, rows) if _is_event(rows[0]) else _from_counts(path, rows)
    for (earlier, _), (later, _) in pairwise(points):
        if later < earlier:
            raise TraceError(
                f"trace {path} goes from {earlier:g} s back to {later:g} s; expected rising times. Sort its lines."
            )
    changes: list[tuple[float, int]] = []
    for time, workers in dict(points).items():  # of several counts at one time the last one counts
        if not changes or workers != changes[-1][1]:
            changes.append((time - points[0][0], workers))
    return WorkerTrace(tuple(time for time, _ in changes), tuple(workers for _, workers in changes))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_event(row: Sequence[str]) -> bool:
    return len(row) == 3 and row[1].strip() in ("add", "remove")


def _from_counts(path: object, rows: Sequence[Sequence[str]]) -> list[tuple[float, int]]:
    points = []
    for row in rows:
        try:
            time, workers = float(row[-2]), int(row[-1])
        except (ValueError, IndexError):
            time, workers = float("nan"), -1
        if not (workers >= 0 and time == time):
            raise TraceError(
                f"a line of trace {path} is {','.join(row)!r}; expected a time in seconds and a count, 0 or more."
            )
        points.append((time, workers))
    return points


def _from_events(path: object, rows: Sequence[Sequence[str]]) -> list[tuple[float, int]]:
    nodes: set[str] = set()
    points = []
    for row in rows:
        if not (_is_event(row) and _is_number(row[0])):
            raise TraceError(f"a line of trace {path} is {','.join(row)!r}; expected milliseconds,add|remove,node.")
        (nodes.add if row[1].strip() == "add" else nodes.discard)(row[2].strip())
        points.append((float(row[0]) / 1000, len(nodes)))
    return points
