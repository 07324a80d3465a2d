"""AdaptDL's figures of a gradient: its norm, its variance, its gain and the progress so far."""

from __future__ import annotations

from collections.abc import Callable

from swell.compat.adaptdl.session import current_session
from swell.compat.adaptdl.torch.loops import step_under_way
from swell.core.moments import gain
from swell.core.types import Moments, NoiseEstimate


class GradientNoiseScale:
    """The measured signal and noise of the gradient; the variance is that of a batch of the initial size."""

    def __init__(self, noise_estimate: Callable[[], NoiseEstimate | None]) -> None:
        self._noise_estimate = noise_estimate

    def sqr_avg(self) -> float:
        """The squared norm of the true gradient; 1 before the first measured step."""
        moments = self._moments()
        return 1.0 if moments is None else max(moments.signal, 0.0)

    def var_avg(self) -> float:
        """The trace of the covariance of a mean gradient over the initial batch; 0 before the first measured step."""
        moments, job = self._moments(), current_session().job
        return 0.0 if moments is None or job is None else max(moments.noise, 0.0) / job.engine.state.pace.base

    def gain(self, scale: float) -> float:
        """The progress of one step at ``scale`` times the initial batch, in steps at the initial batch."""
        job = current_session().job
        return gain(scale, self._moments(), base_batch=1 if job is None else job.engine.state.pace.base)

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
        estimate = self._noise_estimate()
        return None if estimate is None else estimate.total
