"""AdaScale: the learning rate of SGD by measured gradient noise."""

from __future__ import annotations

from dataclasses import dataclass

from swell.core.moments import gain
from swell.core.types import Factors, ScaleState


@dataclass(frozen=True, slots=True)
class AdaScale:
    r"""lr · r, where r is how many base steps the step is worth by the gradient's signal and noise.

    .. math:: r = \frac{\sigma^2 + \mu^2}{\sigma^2 / \kappa + \mu^2}, \qquad
              \sigma^2 = \operatorname{tr}\Sigma / B_0, \quad \mu^2 = |G|^2, \quad \kappa = B / B_0

    Between 1 and κ in either direction, so never faster than the linear rule and never slower than no rule. Each
    parameter group has its own r; the step's gain is r by the moments of the whole gradient, so call :meth:`gain` with
    those. Without moments it is the cautious end of the range, ``min(1, κ)``.

    For SGD with or without momentum. Adam's steps do not depend on the gradient's size: use :class:`AdamScale` there.
    The decay of a model average becomes ρ^κ, which keeps its half-life in samples.

    Reference: Johnson et al. 2020, section 3, https://arxiv.org/abs/2007.05105

    >>> from swell.core.types import Moments
    >>> AdaScale().factors(ScaleState(scale=4.0, base_batch=32, moments=Moments(signal=1.0, noise=32.0))).lr
    1.6
    """

    def factors(self, state: ScaleState) -> Factors:
        return Factors(lr=self.gain(state), ema_power=state.scale)

    def gain(self, state: ScaleState) -> float:
        return gain(state.scale, state.moments, base_batch=state.base_batch)
