"""What the goodput policy tries out: layouts that it knows too little about, within a budget."""

from __future__ import annotations

import numpy as np

from swell.core.goodput import Candidates
from swell.core.types import Observation, StepSummary

SETTLED = 32  # measured steps from which a layout is no longer a trial
_HORIZON = 3000  # assumed base steps of a run of unknown length
_APART = 1.5  # two micro-batches whose sizes differ by a smaller factor show little of what a sample costs
_UNMEASURED = 2  # steps of each trial that a profile leaves out


def trial_budget(seen: Observation, *, explore: float, base: int) -> float:
    """Samples of the whole run that may go into trials."""
    return explore * (seen.total_samples or max(seen.samples, _HORIZON * base))


def trial_thresholds(seen: Observation, *, explore: float, base: int) -> list[float]:
    """The numbers of samples at which a comparison with the budget may change, if nothing else does."""
    bounds = [trial_budget(seen, explore=explore, base=base)]
    if seen.total_samples is None:  # the budget grows
        bounds += [float(_HORIZON * base), spent_on_trials(seen) / explore if explore else 0.0]
    return bounds


def spent_on_trials(seen: Observation) -> int:
    """Samples, approximately, in layouts that were soon left."""
    return sum(_batch(point) * (point.count + _UNMEASURED) for point in seen.profile if point.count < SETTLED)


def steps_measured(seen: Observation) -> int:
    """Measured steps of the present layout; 0 if there are too few for a summary."""
    return max(
        (p.count for p in _world(seen) if p.micro_batch == seen.micro_batch and _batch(p) >= seen.batch), default=0
    )


def largest_settled(seen: Observation, *, at_most: int) -> int:
    """The largest batch up to ``at_most`` that is no longer a trial, in any world; 0 without one."""
    batches = [_batch(point) for point in seen.profile if point.count >= SETTLED]
    return max((batch for batch in batches if batch <= at_most), default=0)


def were_measured(seen: Observation, options: Candidates) -> np.ndarray:
    """Which of the options were measured in this world."""
    known = {(point.micro_batch, point.accumulation) for point in _world(seen)}
    sizes = zip(options.micro_batch.tolist(), options.accumulation.tolist(), strict=True)
    return np.array([layout in known for layout in sizes])


def other_size(seen: Observation, layouts: Candidates) -> int | None:
    """The layout of the present batch to try, by its index, if it is not known what a sample costs.

    One size of micro-batch does not show that, so a second one is tried. If the smallest was the fastest, as may happen
    beyond a cache, the next smaller one is tried. ``layouts`` has the largest first, which costs no time; smaller ones
    do.
    """
    known = sorted({point.micro_batch for point in seen.profile})
    apart = layouts.micro_batch * _APART <= known[0]
    if known[-1] < _APART * known[0]:
        apart |= layouts.micro_batch >= _APART * known[-1]
    else:
        step_s = {p.micro_batch: p.step_s for p in _world(seen) if _batch(p) == layouts.global_batch[0]}
        if len(step_s) < 2 or known[0] not in step_s or step_s[known[0]] > min(step_s.values()):
            return None
    return int(np.argmax(apart)) if np.any(apart) else None


def larger_batch(seen: Observation, options: Candidates, batch: int) -> int | None:
    """A layout of twice the batch to try, by its index, if little was measured in this world and nothing larger."""
    world = _world(seen)
    if len(world) > 2 or any(_batch(point) >= _APART * batch for point in world):
        return None
    distance = np.abs(np.log2(options.global_batch / (2 * batch)))
    nearest = int(np.argmin(distance))
    return nearest if distance[nearest] < 0.5 else None


def _world(seen: Observation) -> list[StepSummary]:
    return [point for point in seen.profile if (point.replicas, point.nodes) == (seen.replicas, seen.nodes)]


def _batch(point: StepSummary) -> int:
    return point.replicas * point.micro_batch * point.accumulation
