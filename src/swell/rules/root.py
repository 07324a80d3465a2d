"""The square-root rule: the learning rate follows the root of the batch size."""

from __future__ import annotations

import math
from dataclasses import dataclass

from swell.core.types import Factors, ScaleState


@dataclass(frozen=True, slots=True)
class Root:
    r"""lr · √κ, with κ = batch / base batch; a step is worth κ base steps.

    For Adam and similar optimizers, whose steps do not shrink with the gradient, while noise dominates. Betas and eps
    stay (:class:`AdamSDE` changes them, and :class:`AdamScale` limits the factor once the signal dominates). For SGD it
    keeps the variance of one step, and learns more slowly per sample than the linear rule. The decay of a model average
    becomes ρ^κ, which keeps its half-life in samples.

    Reference: Krizhevsky 2014, section 5, https://arxiv.org/abs/1404.5997

    >>> Root().factors(ScaleState(scale=4.0, base_batch=32)).lr
    2.0
    """

    def factors(self, state: ScaleState) -> Factors:
        return Factors(lr=math.sqrt(state.scale), ema_power=state.scale)

    def gain(self, state: ScaleState) -> float:
        return state.scale
