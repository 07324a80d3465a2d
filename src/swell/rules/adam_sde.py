"""The Adam SDE rule: learning rate, betas and eps that keep Adam's path when noise dominates."""

from __future__ import annotations

import math
from dataclasses import dataclass

from swell.core.types import Factors, ScaleState
from swell.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamSDE:
    r"""lr · √κ, eps / √κ, β^κ for both betas; a step is worth κ base steps.

    The paper's rule is :math:`1 - \beta \to \kappa (1 - \beta)`. :math:`\beta^\kappa` is its exact form: it is equal to
    first order in :math:`1 - \beta`, keeps the half-life of both averages in samples at any κ, composes (κ₁ then κ₂ is
    κ₁κ₂), and stays in [0, 1), while the paper's is negative beyond κ = 10 for β = 0.9. Bias correction must follow
    such a beta: see ``bias_correction``.

    Valid while noise dominates and κ(1 − β) is small; in practice up to κ of about 8. It does not use the noise, so its
    learning rate keeps growing past the noise scale. ``max_scale`` is a limit: beyond it a step counts, in every factor
    and in gain, as one of ``max_scale`` base batches. The decay of a model average becomes ρ^κ.

    With decoupled weight decay put :class:`KeepDecayTime` around it: √κ on the decay too.

    Reference: Malladi et al. 2022, section 5, https://arxiv.org/abs/2205.10287

    >>> AdamSDE().factors(ScaleState(scale=4.0, base_batch=32))
    Factors(lr=2.0, eps=0.5, weight_decay=1.0, beta_power=4.0, momentum_power=1.0, ema_power=4.0)
    """

    max_scale: float = math.inf

    def __post_init__(self) -> None:
        if not self.max_scale >= 1:
            raise ConfigError(f"max_scale is {self.max_scale}; expected 1 or more. Give for example 8.")

    def factors(self, state: ScaleState) -> Factors:
        scale = self.gain(state)
        root = math.sqrt(scale)
        return Factors(lr=root, eps=1 / root, beta_power=scale, ema_power=scale)

    def gain(self, state: ScaleState) -> float:
        return min(state.scale, self.max_scale)
