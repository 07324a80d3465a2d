"""What a run went through and whether it lost anything, by its log."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from swell.core.events import EpochEnded, EpochStarted, Event, Resized, RunStarted, Stepped, StepSkipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Endurance:
    """Counts of a run's log; ``whole`` says whether every sample was committed once."""

    steps: int  # committed and still standing
    samples: int  # of those steps, each of which was looked at
    lost: int  # samples between two steps that belong to neither
    repeated: int  # samples that belong to two steps
    passed_over: int  # samples of steps that were left out because their loss was not finite
    redone: int  # steps that broke, and were done again
    rewound: int  # steps done again from a checkpoint or from the beginning, for all who had them were lost
    from_beginning: int  # of those, the ones for which there was no checkpoint
    pauses_s: tuple[float, ...]  # how long training waited for each change of the world

    @property
    def whole(self) -> bool:
        """Whether nothing was lost and nothing repeated."""
        return self.lost == 0 and self.repeated == 0

    @property
    def median_pause_s(self) -> float:
        """Half of the pauses were no longer; 0 without any."""
        return statistics.median(self.pauses_s) if self.pauses_s else 0.0

    @property
    def longest_pause_s(self) -> float:
        """0 without any pause."""
        return max(self.pauses_s, default=0.0)


def endurance(events: Iterable[Event]) -> Endurance:
    """Follow a log from step to step: each must begin where the one before it ended.

    A run that begins again at a checkpoint, or without one at the beginning, goes back to it; the steps after it count
    as rewound and come again. An epoch that is said to be complete must have had all its samples.
    """
    ends: list[int] = []  # total samples after each step that stands
    at: int | None = None  # where the next step must begin; None before anything is known
    lost = repeated = passed_over = redone = rewound = from_beginning = 0
    pauses: list[float] = []
    size: int | None = None
    for event in events:
        if isinstance(event, RunStarted):
            while ends and ends[-1] > event.samples:
                ends.pop()
                rewound += 1
                from_beginning += event.samples == 0
            at = event.samples
        elif isinstance(event, Stepped):
            start = event.samples - event.global_batch
            if at is not None:
                lost += max(0, start - at)
                repeated += max(0, at - start)
            at = event.samples
            ends.append(at)
        elif isinstance(event, StepSkipped):
            redone += event.redone
            if not event.redone:
                passed_over += event.samples
                at = None if at is None else at + event.samples
        elif isinstance(event, EpochStarted):
            size = event.epoch_size
        elif isinstance(event, EpochEnded):
            if event.complete and size is not None:
                lost += max(0, size - event.samples)
                repeated += max(0, event.samples - size)
        elif isinstance(event, Resized) and event.pause_s is not None:
            pauses.append(event.pause_s)
    return Endurance(
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
