"""What the goodput policy tries out: layouts it knows too little of, as far as its budget goes."""

from __future__ import annotations

import numpy as np

from swell.core.goodput import Candidates
from swell.core.types import Observation, StepSummary

SETTLED = 32  # measured steps from which a layout is no mere trial
_APART = 1.5  # two micro-batches whose sizes differ by less tell little of what a sample costs
_UNMEASURED = 2  # steps of each trial that a profile leaves out


def spent_on_trials(seen: Observation) -> int:
    """Samples that went into layouts which were soon left, about."""
    return sum(_batch(point) * (point.count + _UNMEASURED) for point in seen.profile if point.count < SETTLED)


def measured_here(seen: Observation) -> int:
    """Measured steps of the layout that stands; 0 where there are too few to tell."""
    return max(
        (p.count for p in _world(seen) if p.micro_batch == seen.micro_batch and _batch(p) >= seen.batch), default=0
    )


def longest_run(seen: Observation, *, at_most: int) -> int:
    """The largest batch up to ``at_most`` that is no mere trial, in whatever world; 0 where there is none."""
    batches = [_batch(point) for point in seen.profile if point.count >= SETTLED]
    return max((batch for batch in batches if batch <= at_most), default=0)


def measured(seen: Observation, options: Candidates) -> np.ndarray:
    """Which of the options were measured in this world."""
    known = {(point.micro_batch, point.accumulation) for point in _world(seen)}
    sizes = zip(options.micro_batch.tolist(), options.accumulation.tolist(), strict=True)
    return np.array([layout in known for layout in sizes])


def other_size(seen: Observation, here: Candidates) -> int | None:
    """Which other layout of the batch that stands tells what a sample costs, where that is not known.

    One size of micro-batch says nothing, so a second is tried; and where the smallest was the fastest, as beyond a
    cache it may be, the next smaller one. ``here`` has the largest first, which costs no time; smaller ones do.
    """
    known = sorted({point.micro_batch for point in seen.profile})
    apart = here.micro_batch * _APART <= known[0]
    if known[-1] < _APART * known[0]:
        apart |= here.micro_batch >= _APART * known[-1]
    else:
        took = {p.micro_batch: p.step_s for p in _world(seen) if _batch(p) == here.global_batch[0]}
        if len(took) < 2 or known[0] not in took or took[known[0]] > min(took.values()):
            return None
    return int(np.argmax(apart)) if np.any(apart) else None


def larger_batch(seen: Observation, options: Candidates, held: int) -> int | None:
    """A layout of twice the batch, while next to nothing was measured in this world and nothing larger."""
    world = _world(seen)
    if len(world) > 2 or any(_batch(point) >= _APART * held for point in world):
        return None
    distance = np.abs(np.log2(options.global_batch / (2 * held)))
    nearest = int(np.argmin(distance))
    return nearest if distance[nearest] < 0.5 else None


def _world(seen: Observation) -> list[StepSummary]:
    return [point for point in seen.profile if (point.replicas, point.nodes) == (seen.replicas, seen.nodes)]


def _batch(point: StepSummary) -> int:
    return point.replicas * point.micro_batch * point.accumulation
