"""The linear rule of SGD: the learning rate follows the batch size."""

from __future__ import annotations

from dataclasses import dataclass

from swell.core.types import Factors, ScaleState


@dataclass(frozen=True, slots=True)
class Linear:
    r"""lr · κ, with κ = batch / base batch; a step is worth κ base steps.

    For SGD while the batch is far below the noise scale: there κ small steps and one large step arrive at the same
    place. Beyond it the learning rate is too large and training diverges; :class:`AdaScale` is this rule with a
    measured limit. The decay of a model average becomes ρ^κ, which keeps its half-life in samples.

    Reference: Goyal et al. 2017, section 2.1, https://arxiv.org/abs/1706.02677

    >>> Linear().factors(ScaleState(scale=8.0, base_batch=32)).lr
    8.0
    """

    def factors(self, state: ScaleState) -> Factors:
        return Factors(lr=state.scale, ema_power=state.scale)

    def gain(self, state: ScaleState) -> float:
        return state.scale
