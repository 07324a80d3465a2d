r"""Signal and noise of a gradient in the dual norm of its optimizer, from two small batches.

Optimizers that step by signs (Signum, Lion) or by orthogonalised matrices (Muon) move by :math:`u(g)`, the largest
:math:`\langle u, g \rangle` in the unit ball of a norm: the sign of each element, or the polar factor of each matrix.
The dual norm is :math:`|g|_* = \langle u(g), g \rangle`: the sum of absolute values, or the nuclear norm.

The dual norm of a noisy gradient overstates the true gradient's. So a step's direction is judged by a gradient that is
independent of it. Of two small batches with mean gradients :math:`g_1, g_2` two figures are taken:

- the reach :math:`P = (\langle u(g_1), g_2 \rangle + \langle u(g_2), g_1 \rangle) / 2`, an unbiased estimate of
  :math:`\langle E u(g_b), G \rangle`, what a step of b samples gains to first order;
- the spread :math:`D = |g_1 - g_2|_*`, which is in proportion to the noise.

Reference: https://arxiv.org/abs/2602.03001 (noise scales of sign and spectral descent); the reach is our own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from swell.core.moment_average import WINDOW, MomentAverage
from swell.core.types import Moments, NoiseEstimate
from swell.errors import CheckpointError, ConfigError

# g1 - g2 is the noise of one sample times sqrt(2 / b). The dual norm of standard deviations, as in the paper, would be
# sqrt(pi / 2) times as large for signs; with this one the law is exact for gradients with normal elements.
_PER_SPREAD = math.sqrt(0.5)


class Pair(NamedTuple):
    """What two small batches of one step say, averaged over the replicas that compared two.

    The small batches are of :math:`b_1` and :math:`b_2` samples, with harmonic mean :math:`h`: the noise of
    :math:`g_1 - g_2` has the variance :math:`2 \\sigma^2 / h`.
    """

    groups: tuple[tuple[float, float], ...]  # of each parameter group: P, and D times the root of h
    root: float  # the mean of the roots of b_1 and b_2: P goes with the root of the batch where noise dominates


def dual_moments(reach: float, spread: float, *, batch: float) -> Moments:
    r"""Squared dual norms of the true gradient and of the noise per sample, from averaged figures.

    .. math:: S = D \sqrt{b / 2}, \quad P^2 = \frac{s}{1 + \varphi / b}, \quad \varphi = \frac{S^2}{s}
              \;\Rightarrow\; \frac{\varphi}{b} = \frac{2 c}{1 + \sqrt{1 + 4 c}}, \quad c = \frac{S^2}{b P^2}

    ``reach`` is P, ``spread`` :math:`D \sqrt b`, and ``batch`` b. S is the mean dual norm of one sample's noise. P is
    the progress of a step of fixed length, so progress at :math:`\kappa` times the batch grows by the root of
    :func:`swell.core.moments.gain`. A reach that is not positive, or that vanishes when it is squared, has no signal.
    The law is exact for signs if the elements of the true gradient are spread like a normal distribution and all have
    the same noise. It is too optimistic for gradients of which few directions matter, because noise counts in all of
    them.

    >>> dual_moments(2.0, 0.0, batch=8)
    Moments(signal=4.0, noise=0.0)
    >>> round(dual_moments(1.0, 8.0, batch=16).noise_scale, 1)
    16.0
    """
    if not 0 < batch < math.inf:
        raise ConfigError(f"batch is {batch}; expected a finite number above 0. Give the samples of one small batch.")
    noise = (_PER_SPREAD * spread) ** 2
    squared = reach * reach if reach > 0 else 0.0
    if squared == 0:  # of a tiny one too
        return Moments(signal=0.0, noise=noise)
    return Moments(signal=squared * (1 + _relative_noise(spread / reach, batch)), noise=noise)


def _relative_noise(ratio: float, batch: float) -> float:
    """phi / b, by the spread over the reach."""
    root = _PER_SPREAD * ratio / math.sqrt(batch)  # of c; its square may overflow
    return root * (2 * root / (1 + math.hypot(1, 2 * root))) if root < math.inf else math.inf


class DualAverage:
    """Running signal and noise in a dual norm, with the interface of a :class:`MomentAverage`.

    Reach and spread are smoothed as signal and noise are, and only smoothed values are divided: so a reach that is
    negative in one step does no harm. The reach belongs to the square of the smoothed root of the small batches' size,
    which is exact where noise dominates and does not matter where it does not. The reach and spread of the whole
    gradient are the sums over groups. Its noise scale grows with their ratio, so the ratio's interval
    (``ratio_interval``) is carried over.

    >>> average = DualAverage(base_batch=32)
    >>> average.update(Pair(groups=((2.0, 8.0), (1.0, 4.0)), root=4.0), batch=32)
    >>> average.estimate().total == dual_moments(3.0, 12.0, batch=16.0)
    True
    """

    def __init__(self, *, base_batch: int, window: float = WINDOW, share: float = math.inf) -> None:
        self._figures = MomentAverage(base_batch=base_batch, window=window, share=share)
        self._roots = MomentAverage(base_batch=base_batch, window=window, share=share)  # with the same weights
        self._source: NoiseEstimate | None = None  # what the latest estimate was made of
        self._latest: NoiseEstimate | None = None

    @property
    def window(self) -> float:
        """How far back it remembers, in base batches."""
        return self._figures.window

    @window.setter
    def window(self, window: float) -> None:
        self._figures.window = self._roots.window = window

    @property
    def share(self) -> float:
        """The part of all samples so far that it remembers at most."""
        return self._figures.share

    @share.setter
    def share(self, share: float) -> None:
        self._figures.share = self._roots.share = share

    @property
    def observations(self) -> int:
        """Steps that were measured and used."""
        return self._figures.observations

    @property
    def dropped(self) -> int:
        """Observations that were not finite."""
        return self._figures.dropped

    def reset(self) -> None:
        """Forget every observation; ``dropped`` is kept."""
        self._figures.reset()
        self._roots.reset()

    def update(self, pair: Pair, *, batch: float, samples_between: float | None = None) -> None:
        """Add what two small batches of a step of ``batch`` samples say; ``samples_between`` as for the others."""
        dropped = self._figures.dropped
        figures = [Moments(signal=reach, noise=spread) for reach, spread in pair.groups]
        if not 0 < pair.root < math.inf:  # of a step that was not measured right: dropped, and counted
            figures = [Moments(signal=math.nan, noise=math.nan)] * len(figures)
        self._figures.update_moments(figures, batch=batch, samples_between=samples_between)
        root = math.nan if self._figures.dropped > dropped else pair.root
        self._roots.update_moments([Moments(root, 0.0)], batch=batch, samples_between=samples_between)

    def estimate(self) -> NoiseEstimate | None:
        """Smoothed moments with a 95 % interval of the noise scale; None before the first observation."""
        figures, roots = self._figures.estimate(), self._roots.estimate()
        if figures is None or roots is None:
            return None
        if figures is not self._source:
            self._source, self._latest = figures, _in_dual_norm(figures, roots.total.signal**2)
        return self._latest

    def state_dict(self) -> dict[str, Any]:
        """Everything measured so far, as plain numbers and lists, without the settings."""
        return {"figures": self._figures.state_dict(), "roots": self._roots.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved ``state_dict``, on any number of replicas."""
        before = self._figures.state_dict()
        try:
            self._figures.load_state_dict(state["figures"])
            self._roots.load_state_dict(state["roots"])
        except (KeyError, TypeError, CheckpointError) as error:
            self._figures.load_state_dict(before)  # all or nothing
            raise CheckpointError(
                f"the state is not a dual average's ({type(error).__name__}: {error}); expected what state_dict() "
                "returned. Load the matching part of the checkpoint, or start again with reset()."
            ) from error


def _in_dual_norm(figures: NoiseEstimate, batch: float) -> NoiseEstimate:
    """The moments that averaged figures stand for."""

    def moments(of: Moments) -> Moments:
        return dual_moments(of.signal, of.noise, batch=batch)

    low, high = (batch * _relative_noise(ratio, batch) for ratio in figures.interval)
    return NoiseEstimate(
        total=moments(figures.total),
        groups=tuple(map(moments, figures.groups)),
        interval=(low, high),
        observations=figures.observations,
    )


def mean_of_pairs(reaches: Sequence[float], spreads: Sequence[float], *, root: float, count: float) -> Pair:
    """One pair of figures that were summed over ``count`` replicas."""
    groups = tuple((reach / count, spread / count) for reach, spread in zip(reaches, spreads, strict=True))
    return Pair(groups=groups, root=root / count)
