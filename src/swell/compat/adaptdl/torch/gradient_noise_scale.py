"""AdaptDL's figures of a gradient: its norm, its variance, its gain and the progress so far."""

from __future__ import annotations

from collections.abc import Callable

from swell.compat.adaptdl.session import current_session
from swell.compat.adaptdl.torch.loops import step_under_way
from swell.core.moments import gain
from swell.core.types import Moments, NoiseEstimate

_LEAST_VARIANCE = 1e-6  # of each group, as in the original


def clipped(estimate: NoiseEstimate | None, *, base_batch: float) -> Moments | None:
    """The sums over parameter groups, each of which counts with 0 or more signal and some variance.

    A group with a small gradient often has a negative estimate of its signal. The original leaves it out of the sum.

    >>> groups = (Moments(signal=2.0, noise=8.0), Moments(signal=-1.0, noise=8.0))
    >>> total = Moments(signal=1.0, noise=16.0)
    >>> clipped(NoiseEstimate(total=total, groups=groups, interval=(0.0, 99.0), observations=3), base_batch=4)
    Moments(signal=2.0, noise=16.0)
    """
    if estimate is None:
        return None
    return Moments(
        signal=sum(max(group.signal, 0.0) for group in estimate.groups),
        noise=sum(max(group.noise, _LEAST_VARIANCE * base_batch) for group in estimate.groups),
    )


class GradientNoiseScale:
    """The measured signal and noise of the gradient; the variance is that of a batch of the initial size.

    Both are sums over the optimizer's parameter groups, clipped as in the original.
    """

    def __init__(self, noise_estimate: Callable[[], NoiseEstimate | None]) -> None:
        self._noise_estimate = noise_estimate

    def sqr_avg(self) -> float:
        """The squared norm of the true gradient; 1 before the first measured step."""
        moments = self._moments()
        return 1.0 if moments is None else moments.signal

    def var_avg(self) -> float:
        """The trace of the covariance of a mean gradient over the initial batch; 0 before the first measured step."""
        moments = self._moments()
        return 0.0 if moments is None else moments.noise / _base()

    def gain(self, scale: float) -> float:
        """The progress of one step at ``scale`` times the initial batch, in steps at the initial batch."""
        return gain(scale, self._moments(), base_batch=_base())

    def get_progress(self) -> float:
        """The progress of all steps so far, in steps at the initial batch."""
        job = current_session().job
        return 0.0 if job is None else job.progress

    @property
    def accum_scale(self) -> float:
        """One batch of all replicas, relative to the initial batch."""
        job, step = current_session().job, step_under_way()
        if job is None or step is None:
            return 1.0
        return step.plan.global_batch / step.plan.accumulation / job.engine.state.pace.base

    def _moments(self) -> Moments | None:
        return clipped(self._noise_estimate(), base_batch=_base())


def _base() -> int:
    job = current_session().job
    return 1 if job is None else job.engine.state.pace.base
