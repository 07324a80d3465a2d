"""What faults cost a run, and whether it lost samples, according to its log."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

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
    pauses_s: tuple[float, ...]  # how long training waited for each change of the world

    @property
    def whole(self) -> bool:
        """Whether nothing was lost and nothing repeated."""
        return self.lost == 0 and self.repeated == 0

    @property
    def median_pause_s(self) -> float:
        """The median of the pauses; 0 without any."""
        return statistics.median(self.pauses_s) if self.pauses_s else 0.0

    @property
    def longest_pause_s(self) -> float:
        """The longest pause; 0 without any."""
        return max(self.pauses_s, default=0.0)


def report_chaos(events: Iterable[Event]) -> ChaosReport:
    """Follow a log from step to step: each step must begin where the previous one ended.

    A run that resumes from a checkpoint, or without one from the beginning, goes back to that position; the steps after
    it count as rewound and are repeated. An epoch that the log calls complete must have had all its samples.
    """
    ends: list[int] = []  # total samples after each step that was not undone
    position: int | None = None  # where the next step must begin; None before anything is known
    lost = repeated = passed_over = redone = rewound = from_beginning = 0
    pauses: list[float] = []
    size: int | None = None
    for event in events:
        if isinstance(event, RunStarted):
            while ends and ends[-1] > event.samples:
                ends.pop()
                rewound += 1
                from_beginning += event.samples == 0
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
                lost += max(0, size - event.samples)
                repeated += max(0, event.samples - size)
        elif isinstance(event, Resized) and event.pause_s is not None:
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
        pauses_s=tuple(pauses),
    )
