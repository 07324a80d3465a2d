"""The learning rate of adaptive optimizers where a step is worth the mean of the scale and the measured gain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from swell.core.types import Factors, ScaleState
from swell.errors import ConfigError
from swell.rules.adamscale import AdamScale


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamMeanGain:
    r"""lr · √κ; a step is worth √(κ r) base steps, where r is the gain in the metric the optimizer works in.

    A step of Adam is the gradient divided by √v, and √v of a larger batch is smaller by √r, because there is less noise
    in it. So √κ on the learning rate moves the weights by √κ · √r, which is what :class:`MeanGain` does for SGD, and
    what the step counts for. The rule has the learning rate of :class:`Root` and a measured worth.

    ``metric`` says which moments r uses, as for :class:`AdamScale`: ``"preconditioned"`` for optimizers with an
    elementwise second moment, ``"plain"`` for others (Signum, Lion, Adafactor). Without moments r is ``min(1, κ)``. The
    decay of a model average becomes ρ^κ.

    Betas (RMSprop's alpha, Adadelta's rho) stay as they are, so a second moment remembers κ times as many samples.
    ``betas="follow"`` raises them to the worth of the step, so that Adam's own averages forget at the pace of the base
    run, as in :class:`AdamSDE`. That helps where rare features need it (embeddings), and harms elsewhere.

    By itself √v would have the size that belongs to a new batch only after a thousand steps. So it is carried over when
    the batch changes (:func:`swell.gradients.second_moment.follow_batch`). ``second_moment="keep"`` leaves it alone.

    >>> from swell.core.types import Moments
    >>> state = ScaleState(scale=4.0, base_batch=32, preconditioned=Moments(signal=1.0, noise=0.0))
    >>> AdamMeanGain().factors(state).lr, AdamMeanGain().gain(state)
    (2.0, 2.0)
    """

    worth_power: ClassVar[float] = 0.5
    metric: Literal["preconditioned", "plain"] = "preconditioned"
    betas: Literal["follow", "keep"] = "keep"
    second_moment: Literal["follow", "keep"] = "follow"

    def __post_init__(self) -> None:
        AdamScale(metric=self.metric)  # raises if the metric is not known
        for name, default in (("betas", "keep"), ("second_moment", "follow")):
            value = getattr(self, name)
            if value not in ("keep", "follow"):
                raise ConfigError(f"{name} is {value!r}; expected 'keep' or 'follow'. Leave it out for {default!r}.")

    def factors(self, state: ScaleState) -> Factors:
        power = self.gain(state) if self.betas == "follow" else 1.0
        return Factors(lr=math.sqrt(state.scale), beta_power=power, ema_power=state.scale)

    def gain(self, state: ScaleState) -> float:
        return math.sqrt(state.scale * AdamScale(metric=self.metric).gain(state))
