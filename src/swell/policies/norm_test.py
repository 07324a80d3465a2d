"""A batch that grows until the gradient's noise passes the norm test."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from swell.core.counts import whole_number
from swell.core.types import Observation
from swell.errors import ConfigError
from swell.policies.arguments import assign, number


@dataclass(frozen=True, slots=True)
class NormTest:
    r"""The smallest batch whose gradient passes the norm test, between ``base`` and ``max``.

    The test requires the variance of the batch's mean gradient to be at most :math:`\eta^2` times its squared norm:

    .. math:: \frac{\operatorname{tr}\Sigma}{B} \le \eta^2 |G|^2 \quad\Longleftrightarrow\quad B \ge \varphi / \eta^2

    with the noise scale :math:`\varphi`, so a smaller ``eta`` means larger batches. For ``eta`` below 1 the negative
    gradient is, in expectation, a direction of descent. The batch never shrinks unless ``monotone=False``.

    It acts only on a sure estimate (``NoiseEstimate.sure``) and keeps the batch until then.

    References: Byrd, Chin, Nocedal, Wu 2012, "Sample size selection in optimization methods for machine learning",
    section 3, there :math:`\theta`; Lau et al. 2024, https://arxiv.org/abs/2412.21124, for data-parallel training.

    >>> from swell.policies import NormTest
    >>> NormTest(base=64, max=4096, eta=0.5)
    NormTest(base=64, max=4096, eta=0.5, monotone=True)
    """

    follows_noise: ClassVar[bool] = True
    base: int
    _: KW_ONLY
    max: int
    eta: float = 0.9
    monotone: bool = True

    def __post_init__(self) -> None:
        assign(self, base=whole_number(self.base, name="base"), max=whole_number(self.max, name="max"))
        assign(self, eta=number(self.eta, name="eta", above=0))
        if self.base > self.max:
            raise ConfigError(
                f"max is {self.max} and base is {self.base}; expected bounds that do not cross. "
                f"Raise max to {self.base} or more."
            )

    def batch(self, seen: Observation) -> int:
        target, noise_scale = float(seen.batch), None if seen.noise is None else seen.noise.trusted
        if noise_scale is not None:
            smallest = noise_scale / self.eta / self.eta  # eta**2 may be too small for a float
            target = max(target, smallest) if self.monotone else smallest
        return math.ceil(max(self.base, min(target, seen.within_epoch(self.max))))
