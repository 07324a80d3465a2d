"""A run's steps as columns of numbers, without steps that a resume undid."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from swell.core.events import Event, Resized, Stepped
from swell.errors import ConfigError

_LARGEST_EXPONENT = 600.0  # beyond it the oldest weights would be 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Series:
    """One entry for each committed step; values that were not measured are not-a-number."""

    time: np.ndarray  # when the step was committed, in seconds since the epoch
    samples: np.ndarray  # committed up to and including the step
    loss: np.ndarray
    global_batch: np.ndarray
    replicas: np.ndarray
    gain: np.ndarray
    lr_factor: np.ndarray  # of the first parameter group
    progress: np.ndarray
    noise_scale: np.ndarray
    samples_per_s: np.ndarray
    cut: np.ndarray  # bool: the short last step of an epoch, which took the remaining samples
    resizes: np.ndarray  # samples at which the world changed

    @property
    def steps(self) -> int:
        """Number of steps of the run."""
        return len(self.samples)

    def chosen(self, column: np.ndarray) -> np.ndarray:
        """The column with each short last step of an epoch replaced by the step before it."""
        rows = np.arange(self.steps)
        return column[np.maximum.accumulate(np.where(self.cut, 0, rows))]


def series_of(events: Iterable[Event]) -> Series:
    """The columns of a run's events.

    A run that resumed from a checkpoint may have done some steps twice; the last time counts. Raises ``ConfigError``
    if there is no step.
    """
    steps: list[Stepped] = []
    resizes: list[int] = []
    for event in events:
        if isinstance(event, Stepped):
            while steps and steps[-1].samples >= event.samples:
                steps.pop()
            while resizes and resizes[-1] >= event.samples:
                resizes.pop()
            steps.append(event)
        elif isinstance(event, Resized) and steps:
            resizes.append(steps[-1].samples)
    if not steps:
        raise ConfigError(
            "the log has no committed step; expected at least one to draw. Let the run take a step first, or check "
            "that this is the right log."
        )

    def column(values: Iterable[float | None]) -> np.ndarray:
        return np.array([np.nan if value is None else value for value in values], dtype=float)

    return Series(
        time=column(step.time for step in steps),
        samples=column(step.samples for step in steps),
        loss=column(step.loss for step in steps),
        global_batch=column(step.global_batch for step in steps),
        replicas=column(step.replicas for step in steps),
        gain=column(step.gain for step in steps),
        lr_factor=column(step.lr_factor[0] if step.lr_factor else None for step in steps),
        progress=column(step.progress for step in steps),
        noise_scale=column(step.noise_scale for step in steps),
        samples_per_s=column(step.global_batch / step.step_s if step.step_s > 0 else None for step in steps),
        cut=np.array([_is_cut(*three) for three in zip([None, *steps], steps, [*steps[1:], None], strict=False)]),
        resizes=np.array(resizes, dtype=float),
    )


def _is_cut(before: Stepped | None, step: Stepped, after: Stepped | None) -> bool:
    last = after is None or after.epoch != step.epoch
    return last and before is not None and before.epoch == step.epoch and step.global_batch < before.global_batch


def smoothed(values: np.ndarray, samples: np.ndarray, *, over: float) -> np.ndarray:
    r"""The values' exponential average over about the last ``over`` samples, bias-corrected.

    .. math:: s_i = \sum_{j \le i} w_j\,v_j \Big/ \sum_{j \le i} w_j, \qquad w_j = b_j\,e^{-(n_i - n_j)/\mathrm{over}}

    with :math:`n_j` the samples at step j and :math:`b_j` those of the step itself, so that large batches weigh more.
    Values that are not finite are skipped.
    """
    sizes = np.diff(samples, prepend=0.0)
    if not len(values) or (samples[-1] - samples[0]) / over > _LARGEST_EXPONENT:
        return _smoothed_in_order(values, sizes, over=over)
    known = np.isfinite(values)
    weights = np.where(known, sizes, 0.0) * np.exp((samples - samples[-1]) / over)
    total = np.cumsum(weights)
    sums = np.cumsum(weights * np.where(known, values, 0.0))
    return np.where(total > 0, sums / np.where(total > 0, total, 1.0), np.nan)


def _smoothed_in_order(values: np.ndarray, sizes: np.ndarray, *, over: float) -> np.ndarray:
    """The same one value after another, for spans whose weights would underflow."""
    mean, weight, result = math.nan, 0.0, np.full(len(values), np.nan)
    for i, (value, size) in enumerate(zip(values.tolist(), sizes.tolist(), strict=True)):
        weight *= math.exp(-size / over)
        if math.isfinite(value):
            weight += size
            mean = value if math.isnan(mean) else mean + (value - mean) * size / weight
        result[i] = mean
    return result
