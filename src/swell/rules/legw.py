"""LEGW: the square-root rule with a warm-up that lengthens with the batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from swell.core.types import Factors, ScaleState
from swell.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LEGW:
    r"""lr · √κ, and κ times as many samples of warm-up; a step is worth κ base steps.

    .. math:: \sqrt\kappa \; \frac{\min(1, n / (\kappa W))}{\min(1, n / W)}

    with n the samples up to the end of this step and W the warm-up at the base batch, in samples. The warm-up at scale
    1 is the user's own (a scheduler's): the rule stretches it and is 1 at scale 1, like every rule. With
    ``base_warmup="rule"`` there is no other warm-up, and the rule does all of it, at scale 1 too: the denominator is 1.

    For a batch that grows long after the warm-up this is plain :class:`Root`. The decay of a model average becomes ρ^κ,
    which keeps its half-life in samples.

    Args:
        warmup: length of the warm-up at scale 1 in base batches of samples; 0 for none.
        base_warmup: who warms up at scale 1, the user's ``"schedule"`` or the ``"rule"``.

    Reference: You et al. 2019, https://arxiv.org/abs/1901.08256 (linear-epoch gradual warm-up).

    >>> rule = LEGW(warmup=100)
    >>> [rule.factors(ScaleState(scale=4.0, base_batch=32, samples=n)).lr for n in (0, 6_272, 1_000_000)]
    [0.5, 1.0, 2.0]
    """

    warmup: float = 200.0
    base_warmup: Literal["schedule", "rule"] = "schedule"

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < math.inf:
            raise ConfigError(f"warmup is {self.warmup}; expected base batches, 0 or more. Give for example 200.")
        if self.base_warmup not in ("schedule", "rule"):
            raise ConfigError(
                f"base_warmup is {self.base_warmup!r}; expected 'schedule' or 'rule'. Give 'schedule' if your own "
                "schedule warms up at the base batch, 'rule' if it does not."
            )

    @classmethod
    def from_epochs(
        cls,
        epochs: float,
        *,
        epoch_size: int,
        base_batch: int,
        base_warmup: Literal["schedule", "rule"] = "schedule",
    ) -> LEGW:
        """A warm-up in epochs at the base batch, as in the paper.

        >>> LEGW.from_epochs(0.5, epoch_size=60_000, base_batch=100)
        LEGW(warmup=300.0, base_warmup='schedule')
        """
        return cls(warmup=epochs * epoch_size / base_batch, base_warmup=base_warmup)

    def factors(self, state: ScaleState) -> Factors:
        base = self.warmup * state.base_batch
        reached = state.samples + state.scale * state.base_batch  # this step included: no step is taken with lr 0
        warm = _ramp(reached, base * state.scale)
        if self.base_warmup == "schedule":
            warm /= _ramp(reached, base)
        return Factors(lr=math.sqrt(state.scale) * warm, ema_power=state.scale)

    def gain(self, state: ScaleState) -> float:
        return state.scale


def _ramp(reached: float, length: float) -> float:
    return 1.0 if reached >= length else reached / length
