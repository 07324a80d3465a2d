"""A batch that follows the gradient noise scale."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from swell.core.counts import whole_number
from swell.core.types import Observation
from swell.errors import ConfigError
from swell.policies.arguments import assign, number


@dataclass(frozen=True, slots=True)
class NoiseScale:
    r"""A batch of ``factor`` times the gradient noise scale, between ``min`` and ``max``.

    .. math:: B = \text{factor} \cdot \varphi, \qquad \varphi = \frac{\operatorname{tr}\Sigma}{|G|^2}

    At :math:`B = \varphi` noise and signal are equal: a larger batch saves few steps, a smaller one few samples. The
    noise scale grows while the loss falls, and so does the batch. ``base`` is the batch the learning rate was tuned
    for; ``min`` is ``base`` by default, so the batch does not shrink below it.

    It acts only on a sure estimate (``NoiseEstimate.sure``) and keeps the batch until then. An estimate moves a little
    in every step; put :class:`~swell.policies.Hysteresis` around it so that the batch does not.

    Reference: McCandlish et al. 2018, sections 2.2 and 2.3, https://arxiv.org/abs/1812.06162. The noise scale
    approximates the critical batch size under strong assumptions; find ``factor`` by experiment.

    >>> from swell.policies import Hysteresis, NoiseScale
    >>> Hysteresis(NoiseScale(base=64, max=4096), change=0.2).base
    64
    """

    follows_noise: ClassVar[bool] = True
    base: int
    _: KW_ONLY
    max: int
    factor: float = 1.0
    min: int | None = None

    def __post_init__(self) -> None:
        assign(self, base=whole_number(self.base, name="base"), max=whole_number(self.max, name="max"))
        assign(self, factor=number(self.factor, name="factor", above=0))
        if self.min is not None:
            assign(self, min=whole_number(self.min, name="min"))
        low = self.base if self.min is None else self.min
        if low > self.max:
            raise ConfigError(
                f"max is {self.max} and {'base' if self.min is None else 'min'} is {low}; expected bounds that do not "
                f"cross. Raise max to {low} or more, or give a smaller min."
            )

    def batch(self, seen: Observation) -> int:
        low = self.base if self.min is None else self.min
        noise_scale = None if seen.noise is None else seen.noise.trusted
        target = float(seen.batch) if noise_scale is None else self.factor * noise_scale
        return round(max(low, min(target, seen.within_epoch(self.max))))
