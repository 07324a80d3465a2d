"""What faults cost a run, and whether it lost samples, according to its log."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from swell.core.events import EpochEnded, EpochStarted, Event, Resized, RunStarted, Stepped, StepSkipped


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosReport:
    """Counts from a run's log; ``whole`` says whether every sample was committed once."""

    steps: int  # committed and not undone by a resume
    samples: int  # of those steps, all of them checked
    lost: int  # samples between two steps that belong to neither
    repeated: int  # samples that belong to two steps
    passed_over: int  # samples of steps that were skipped because their loss was not finite
    redone: int  # steps that broke and were repeated
    rewound: int  # steps repeated from a checkpoint or from the beginning, because all their workers were lost
    from_beginning: int  # those of them for which there was no checkpoint
    rewinds: tuple[tuple[int, int], ...]  # each time that happened: steps committed before, and steps left after it
    pauses_s: tuple[float, ...]  # how long training waited for each change of the world
    unexplained: int = 0  # how often the run went back although no fault had struck all its workers: they failed alone

    @property
    def whole(self) -> bool:
        """Whether nothing was lost and nothing repeated."""
        return self.lost == 0 and self.repeated == 0

    @property
    def work_kept(self) -> bool:
        """Whether no committed step had to be done again."""
        return self.rewound == 0

    @property
    def median_pause_s(self) -> float:
        """The median of the pauses; 0 without any."""
        return statistics.median(self.pauses_s) if self.pauses_s else 0.0

    @property
    def longest_pause_s(self) -> float:
        """The longest pause; 0 without any."""
        return max(self.pauses_s, default=0.0)


def report_chaos(events: Iterable[Event], fault_times: Sequence[float] | None = None) -> ChaosReport:
    """Follow a log from step to step: each step must begin where the previous one ended.

    A run that resumes from a checkpoint, or without one from the beginning, goes back to that position; the steps after
    it count as rewound and are repeated. An epoch that the log calls complete must have had all its samples.

    ``fault_times`` say when workers were struck. A run goes back only if all workers of its world are lost, so each of
    them must have been struck since that world was formed. The times of a worker whose
    clock was struck, and is ahead, are not believed.
    """
    events = list(events)
    formed = _formed_at(events)
    ends: list[int] = []  # total samples after each step that was not undone
    position: int | None = None  # where the next step must begin; None before anything is known
    lost = repeated = passed_over = redone = rewound = from_beginning = 0
    pauses: list[float] = []
    unexplained, replicas, formed_at = 0, 0, 0.0
    rewinds: list[tuple[int, int]] = []
    size: int | None = None
    for event, (world_at, next_at) in zip(events, formed, strict=True):
        if isinstance(event, RunStarted):
            before = len(ends)
            if ends and ends[-1] > event.samples and fault_times is not None:
                unexplained += sum(formed_at <= at <= next_at for at in fault_times) < replicas
            replicas, formed_at = event.replicas, world_at
            while ends and ends[-1] > event.samples:
                ends.pop()
                rewound += 1
                from_beginning += event.samples == 0
            if len(ends) < before:
                rewinds.append((before, len(ends)))
            position = event.samples
        elif isinstance(event, Stepped):
            start = event.samples - event.global_batch
            if position is not None:
                lost += max(0, start - position)
                repeated += max(0, position - start)
            position = event.samples
            ends.append(position)
        elif isinstance(event, StepSkipped):
            redone += event.redone
            if not event.redone:
                passed_over += event.samples
                position = None if position is None else position + event.samples
        elif isinstance(event, EpochStarted):
            size = event.epoch_size
        elif isinstance(event, EpochEnded):
            if event.complete and size is not None:
                lost += max(0, size - event.samples - event.dropped)
                repeated += max(0, event.samples - size)
        elif isinstance(event, Resized):
            replicas, formed_at = event.after, world_at - (event.pause_s or 0.0)
            if event.pause_s is not None:
                pauses.append(event.pause_s)
    return ChaosReport(
        steps=len(ends),
        samples=ends[-1] if ends else 0,
        lost=lost,
        repeated=repeated,
        passed_over=passed_over,
        redone=redone,
        rewound=rewound,
        from_beginning=from_beginning,
        rewinds=tuple(rewinds),
        pauses_s=tuple(pauses),
        unexplained=unexplained,
    )


def _formed_at(events: Sequence[Event]) -> list[tuple[float, float]]:
    """For each event, the earliest and the latest time at which its world may have been formed.

    A clock that is ahead is known by a later world that seems to be older. Then the time of the world before it counts.
    """
    worlds = [event.time if isinstance(event, RunStarted | Resized) else math.inf for event in events]
    latest = list(accumulate(reversed(worlds), min))[::-1]
    earliest, before = [], 0.0
    for seen, bound in zip(worlds, latest, strict=True):
        before = seen if seen == bound < math.inf else before
        earliest.append(before)
    return list(zip(earliest, latest, strict=True))
