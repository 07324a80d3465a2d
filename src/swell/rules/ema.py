"""The decay of a model average (EMA), kept in samples, around any rule."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from swell.core.protocols import Rule
from swell.core.types import Factors, Moments, ScaleState


@dataclass(frozen=True, slots=True)
class KeepAverageTime:
    r"""The rule's factors, with the decay of a model average raised to the power κ: ρ^κ.

    The average then spans the same number of samples at any batch. Every rule of this package that scales anything does
    this itself; this one is for :class:`Constant` and for rules of your own.

    Reference: Busbridge et al. 2023, definition 1.2, https://arxiv.org/abs/2307.13813

    >>> from swell.rules.constant import Constant
    >>> KeepAverageTime(Constant()).factors(ScaleState(scale=4.0, base_batch=32)).ema_power
    4.0
    """

    rule: Rule

    def factors(self, state: ScaleState) -> Factors:
        return dataclasses.replace(self.rule.factors(state), ema_power=state.scale)

    def gain(self, state: ScaleState) -> float:
        return self.rule.gain(state)


def averages_follow(rule: Rule) -> bool:
    """Whether a rule lets the decay of a model average follow the batch; asked of a step at twice the base batch.

    The noise is known in that step, because a rule of your own may count on that above the base batch.

    >>> from swell.rules import Constant, Linear
    >>> averages_follow(Linear()), averages_follow(Constant()), averages_follow(KeepAverageTime(Constant()))
    (True, False, True)
    """
    known = Moments(signal=1.0, noise=1.0)
    twice = ScaleState(scale=2.0, base_batch=1, moments=known, preconditioned=known, dual=known)
    return rule.factors(twice).ema_power != 1
