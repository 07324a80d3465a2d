"""How long the goodput policy keeps a batch, and how much better another one must be."""

from __future__ import annotations

from swell.core.types import Observation
from swell.policies.goodput_trials import SETTLED, steps_measured

_TRIAL_STEPS, _SETTLED_STEPS = 8, 24  # for which a batch is kept, while it is on trial and later
_UNMEASURED_DWELLS = 4  # dwells for which a batch is kept that was never measured
_LONG_DWELLS = 16  # dwells after which half of the hysteresis is enough


def is_early(seen: Observation, *, dwell: int | None) -> bool:
    """Whether it is too early for another batch; one that was never measured is kept for longer."""
    since, dwell_samples = seen.samples - seen.batch_since, _dwell_samples(seen, dwell)
    if since < dwell_samples:
        return True
    longer = _UNMEASURED_DWELLS * max(dwell_samples, _TRIAL_STEPS * seen.batch)
    return not steps_measured(seen) and since < longer


def required_gain(seen: Observation, *, hysteresis: float, dwell: int | None) -> float:
    """The part of the goodput that a change must add: little for a trial, half for a layout kept for long."""
    if steps_measured(seen) < SETTLED:
        return hysteresis / 4
    long = seen.samples - seen.batch_since >= _LONG_DWELLS * _dwell_samples(seen, dwell)
    return hysteresis / (2 if long else 1)


def thresholds(seen: Observation, *, dwell: int | None) -> list[float]:
    """The numbers of samples at which ``is_early`` or ``required_gain`` may change, if nothing else does."""
    samples = _dwell_samples(seen, dwell)
    longer = _UNMEASURED_DWELLS * max(samples, _TRIAL_STEPS * seen.batch)
    return [seen.batch_since + span for span in (samples, longer, _LONG_DWELLS * samples)]


def _dwell_samples(seen: Observation, dwell: int | None) -> int:
    if dwell is not None:
        return dwell
    return (_SETTLED_STEPS if steps_measured(seen) >= SETTLED else _TRIAL_STEPS) * seen.batch
