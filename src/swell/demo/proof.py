"""The demo's claims about its elastic run, checked against the records that its workers wrote."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from swell.core.events import Event, Resized, RunStarted, Stepped
from swell.demo.training import Result
from swell.demo.worker import USED

# Over ten seeds the accuracy has a standard deviation of 0.4 percentage points, so two runs that differ only in their
# seed are further apart than this once in several thousand.
NOISE = 0.02


@dataclass(frozen=True)
class Claim:
    """A statement about the run, and whether it is true."""

    text: str
    holds: bool


def rows_used(folder: Path) -> dict[tuple[int, int], list[int]]:
    """The rows that all workers together used for a step, by the number of previous steps and of replicas.

    A step that was begun on two replicas and repeated on one has two entries.
    """
    used: dict[tuple[int, int], list[int]] = defaultdict(list)
    for path in sorted(folder.glob(USED.format("*"))):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):  # a killed worker may leave half a line
                record = json.loads(line)
                used[record["done"], record["replicas"]] += record["rows"]
    return dict(used)


def rows_committed(
    events: Iterable[Event], used: Mapping[tuple[int, int], Sequence[int]]
) -> dict[int, dict[int, list[int]]]:
    """The rows of each committed step, by epoch and step; the log says which attempt counted.

    If the log contains a step more than once, the run went back to a checkpoint, and the last time counts.
    """
    last = {event.step: event for event in events if isinstance(event, Stepped)}
    committed: dict[int, dict[int, list[int]]] = defaultdict(dict)
    for step, event in last.items():
        committed[event.epoch][step] = list(used.get((step - 1, event.replicas), ()))
    return dict(committed)


def each_sample_once(committed: Mapping[int, Mapping[int, Sequence[int]]], *, size: int, epochs: int) -> Claim:
    """Every epoch uses every row of the data set once."""
    missing = repeated = 0
    for epoch in range(epochs):
        counts = Counter(row for rows in committed.get(epoch, {}).values() for row in rows)
        missing += size - len(counts)
        repeated += sum(counts.values()) - len(counts)
    surplus = sum(len(rows) for epoch in committed.values() for rows in epoch.values()) - epochs * size
    if missing or repeated or surplus:
        return Claim(f"of {epochs} × {size:,} samples {missing:,} were lost and {repeated:,} used twice", False)
    return Claim(f"{epochs} epochs of {size:,} samples: each was used exactly once in each of them", True)


def all_of_it_happened(events: Sequence[Event]) -> Claim:
    """The run started on one worker, grew to two, continued on one, was resumed, and ended on two."""
    worlds: list[int] = []
    for event in events:
        if isinstance(event, Stepped) and worlds[-1:] != [event.replicas]:
            worlds.append(event.replicas)
    lost = any(isinstance(event, Resized) and event.after < event.before and "lost" in event.reason for event in events)
    resumed = sum(isinstance(event, RunStarted) and event.samples > 0 for event in events)
    path = " → ".join(map(str, worlds))
    text = f"workers: {path}, {'one' if lost else 'none'} lost; stopped and resumed: {resumed} ×"
    return Claim(text, worlds[:3] == [1, 2, 1] and worlds[-1] == 2 and lost and resumed == 1)


def same_accuracy(disturbed: Result, undisturbed: Result) -> Claim:
    """Both runs are equally accurate, up to the variation between seeds."""
    text = f"{disturbed.accuracy:.1%} of the digits right; the same run undisturbed: {undisturbed.accuracy:.1%}"
    return Claim(text, abs(disturbed.accuracy - undisturbed.accuracy) <= NOISE)


def claims(
    events: Sequence[Event], folder: Path, disturbed: Result, undisturbed: Result, *, size: int, epochs: int
) -> list[Claim]:
    """All claims about the run in ``folder``."""
    committed = rows_committed(events, rows_used(folder))
    return [
        all_of_it_happened(events),
        each_sample_once(committed, size=size, epochs=epochs),
        same_accuracy(disturbed, undisturbed),
    ]
