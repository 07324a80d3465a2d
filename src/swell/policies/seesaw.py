"""A batch that grows where the learning-rate schedule falls."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

from swell.core.counts import whole_number
from swell.core.types import Observation
from swell.errors import ConfigError
from swell.policies.arguments import assign, number

_CLOSE = 1e-9  # a rate that was halved by a scheduler may be off by rounding


@dataclass(frozen=True, slots=True)
class Seesaw:
    r"""Where the schedule divides the learning rate by ``step``, the batch is multiplied by it.

    .. math:: B = \text{base} \cdot s^{\lfloor \log_s (\eta_{\max} / \eta) \rfloor}, \qquad s = \text{step}

    :math:`\eta` is the rate that the scheduler asks for, :math:`\eta_{\max}` its largest so far, so nothing happens in
    a warm-up. Use it with ``rule="root"`` for Adam and its kind: a rate that the schedule halves is divided by √2
    instead, at twice the batch. For SGD use ``rule="linear"``: the rate stays and the batch doubles. Both rules count
    samples, so the run takes as many of them as without, in fewer steps: about a third fewer with a cosine schedule.

    It follows the scheduler that was given to ``job.wrap``; without one the batch stays at ``base``. ``max`` is a hard
    limit: a batch above the critical one gains nothing.

    Reference: Meterez et al. 2025, Seesaw, https://arxiv.org/abs/2510.14717

    >>> from swell.policies import Seesaw
    >>> Seesaw(256, max=4096).step
    2.0
    """

    base: int
    _: KW_ONLY
    max: int
    step: float = 2.0

    def __post_init__(self) -> None:
        assign(self, base=whole_number(self.base, name="base"), max=whole_number(self.max, name="max"))
        assign(self, step=number(self.step, name="step", above=1, example=2.0))
        if self.base > self.max:
            raise ConfigError(
                f"max is {self.max} and base is {self.base}; expected bounds that do not cross. "
                f"Raise max to {self.base} or more."
            )

    def batch(self, seen: Observation) -> int:
        limit = seen.within_epoch(self.max)
        if not seen.lr_height > 0:
            return max(self.base, limit)
        times = math.floor(-math.log(seen.lr_height) / math.log(self.step) + _CLOSE)
        most = math.ceil(math.log(self.max / self.base) / math.log(self.step))  # more would be above the limit
        return round(max(self.base, min(self.base * self.step ** min(times, most), limit)))
