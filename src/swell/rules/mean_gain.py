"""The learning rate of SGD by the geometric mean of the scale and the measured gain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from swell.core.moments import gain
from swell.core.types import Factors, ScaleState


@dataclass(frozen=True, slots=True)
class MeanGain:
    r"""lr · √(κ r), halfway between the linear rule and :class:`AdaScale`; a step is worth √(κ r) base steps.

    κ is batch / base batch, and r is AdaScale's gain, between 1 and κ. AdaScale counts what the whole gradient's noise
    allows. Measured on real trainings a larger batch is worth more than that, and less than its samples: the directions
    that still have to be learned are noisier than those that make up the gradient's norm. The geometric mean was right
    within a few per cent where AdaScale's gain counted too little and the linear rule too much: see "What is a larger
    batch worth?" in the documentation.

    Without moments it is the cautious end of the range: r = ``min(1, κ)``. Each parameter group has its own r; the
    step's gain is by the moments of the whole gradient. The decay of a model average becomes ρ^κ.

    For SGD with or without momentum; :class:`AdamMeanGain` is its twin for Adam and similar optimizers.

    >>> from swell.core.types import Moments
    >>> MeanGain().factors(ScaleState(scale=4.0, base_batch=32, moments=Moments(signal=3.0, noise=0.0))).lr
    2.0
    >>> MeanGain().gain(ScaleState(scale=4.0, base_batch=32, moments=Moments(signal=0.0, noise=32.0)))
    4.0
    """

    worth_power: ClassVar[float] = 0.5

    def factors(self, state: ScaleState) -> Factors:
        return Factors(lr=self.gain(state), ema_power=state.scale)

    def gain(self, state: ScaleState) -> float:
        return math.sqrt(state.scale * gain(state.scale, state.moments, base_batch=state.base_batch))
