"""What a larger step is worth by branches from one state, and the critical batch size that follows.

A branch makes some steps at one batch, then decays its learning rate, and is judged by its loss on the probe samples.
Reference: Merrill et al. 2025, "Critical batch size revisited", https://arxiv.org/abs/2505.23971
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from swell.core.student_t import student_t

Curve = Sequence[tuple[int, float]]  # (steps, loss after the decay)
_FINE = 4096  # critical batches that are tried in a fit, evenly in their logarithm
_LOWEST, _HIGHEST = 1 / 64, 64  # the first of them in base batches, and the last in largest batches


def branch_worth(base: Curve, large: Curve) -> float | None:
    """How many base steps one large step was worth: base steps to the same loss, over large steps.

    Base steps are interpolated between the points of the base branch. Of the large branch the longest piece counts
    that the base branch reaches too; if it does not even reach the shortest, that one is taken for the whole base
    branch. None if the base branch made no progress, so that there is nothing to compare with.

    >>> branch_worth([(0, 2.0), (10, 1.5), (20, 1.0)], [(5, 1.5), (10, 0.9)])
    2.0
    """
    falling: list[tuple[int, float]] = []
    for steps, loss in sorted(base):
        if not falling or loss < falling[-1][1]:
            falling.append((steps, loss))
    if len(falling) < 2:
        return None
    counts, losses = zip(*reversed(falling), strict=True)
    longest = sorted(large, reverse=True)
    steps, loss = next((point for point in longest if point[1] >= losses[0]), longest[-1])
    return float(np.interp(loss, losses, counts)) / steps


@dataclass(frozen=True, slots=True, kw_only=True)
class WorthOfBatch:
    """What a step at one batch was worth in base steps, over all draws."""

    batch: int
    worth: float
    error: float | None  # one standard error of the mean; None for a single draw
    draws: int

    @property
    def margin(self) -> float:
        """Half of the 95 % interval, by Student's distribution, because draws are few; infinite for a single one."""
        return math.inf if self.error is None else student_t(self.draws - 1) * self.error


def worths(draws: Sequence[Mapping[int, Curve]], *, base: int) -> list[WorthOfBatch]:
    """The mean worth of each larger batch; each draw has a branch for each batch, that of the base batch among them."""
    found = []
    for batch in sorted({batch for draw in draws for batch in draw if batch != base}):
        values = [branch_worth(draw[base], draw[batch]) for draw in draws if batch in draw]
        known = [value for value in values if value is not None]
        if known:
            error = float(np.std(known, ddof=1)) / math.sqrt(len(known)) if len(known) > 1 else None
            found.append(WorthOfBatch(batch=batch, worth=float(np.mean(known)), error=error, draws=len(known)))
    return found


def critical_batch(worth_of: Mapping[int, float], *, base: int) -> float:
    r"""The batch :math:`\varphi` at which a sample is worth half as much as in the smallest batches, fitted to worths.

    By the law of the noise scale, a step at ``kappa`` base batches is worth ``kappa (phi + base) / (phi + kappa base)``
    base steps. Least squares of the logarithms. Infinite where samples lost next to nothing (above 64 times the largest
    batch), 0 where larger steps gained next to nothing (below a 64th of the base batch).

    >>> round(critical_batch({64: 64 / 16 * (100 + 16) / (100 + 64)}, base=16), 0)
    100.0
    """
    batches = np.array(sorted(worth_of), dtype=float)
    values = np.clip([worth_of[int(batch)] for batch in batches], 1.0, batches / base)
    tried = np.geomspace(_LOWEST * base, _HIGHEST * batches[-1], _FINE)
    counted = batches / base * (tried[:, None] + base) / (tried[:, None] + batches)
    best = int(np.argmin(np.square(np.log(counted) - np.log(values)).sum(axis=1)))
    return 0.0 if best == 0 else math.inf if best == _FINE - 1 else float(tried[best])


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalBatch:
    """The critical batch size with its 95 % interval."""

    batch: float
    low: float
    high: float


def critical_batch_of_draws(draws: Sequence[Mapping[int, Curve]], *, base: int) -> CriticalBatch | None:
    """Fitted to the mean worths; bounds by fits to both ends of the worths' intervals; None if nothing is known.

    With one draw the bounds are 0 and infinity.
    """
    found = worths(draws, base=base)
    if not found:
        return None

    def fitted(margins: int) -> float:
        shifted = {one.batch: one.worth + (margins * one.margin if margins else 0.0) for one in found}
        return critical_batch(shifted, base=base)

    if any(one.error is None for one in found):
        return CriticalBatch(batch=fitted(0), low=0.0, high=math.inf)
    return CriticalBatch(batch=fitted(0), low=fitted(-1), high=fitted(1))
