"""AdaptDL's names for the rules by which the learning rate follows the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from swell import rules
from swell.core.protocols import Rule
from swell.core.types import Factors, ScaleState
from swell.errors import ConfigError

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from swell.compat.adaptdl.torch.parallel import AdaptiveDataParallel

_ADAM = ("Adam", "AdamW")


class ScalingRuleBase:
    """A rule of your own: override ``scale_lr(scale)`` to return the learning rate's factor, or one for each group.

    ``self.adp`` is the wrapped model; ``self.adp.gns`` has the gradient's measured signal and variance.
    """

    adp: AdaptiveDataParallel | None = None

    def scale_lr(self, scale: float) -> Any:
        """The factor for the learning rate at ``scale`` times the initial batch."""
        raise ConfigError(
            f"{type(self).__name__} has no scale_lr; expected one that returns the learning rate's factor. Define "
            f"scale_lr(self, scale), or use AdaScale()."
        )

    def initialize(self, adp: AdaptiveDataParallel, optimizer: Optimizer, patch_optimizer: bool = False) -> None:
        """Remember the model of the rule; ``AdaptiveDataParallel`` calls it."""
        self.adp = adp

    def rule(self, optimizer: Optimizer, base_batch: int) -> Rule:
        """The rule that the job uses."""
        return _OwnScale(self, len(optimizer.param_groups))


class AdaScale(ScalingRuleBase):
    """The gain of each parameter group: :class:`swell.AdaScale`."""

    def rule(self, optimizer: Optimizer, base_batch: int) -> Rule:
        """The rule that the job uses."""
        return rules.AdaScale()


class AdamScale(ScalingRuleBase):
    """The root of the gain, measured in Adam's own metric: :class:`swell.AdamScale`."""

    def rule(self, optimizer: Optimizer, base_batch: int) -> Rule:
        """The rule that the job uses."""
        return rules.AdamScale()


class LinearScale(ScalingRuleBase):
    """The scale: :class:`swell.Linear`."""

    def rule(self, optimizer: Optimizer, base_batch: int) -> Rule:
        """The rule that the job uses."""
        return rules.Linear()


class SqrtScale(ScalingRuleBase):
    """The root of the scale: :class:`swell.Root`."""

    def rule(self, optimizer: Optimizer, base_batch: int) -> Rule:
        """The rule that the job uses."""
        return rules.Root()


class LEGWScale(ScalingRuleBase):
    """The root of the scale, after a warm-up of ``base_warmup_epochs`` times the scale: :class:`swell.LEGW`."""

    def __init__(self, base_warmup_epochs: float, data_size: int) -> None:
        self._epochs, self._size = base_warmup_epochs, data_size

    def rule(self, optimizer: Optimizer, base_batch: int) -> Rule:
        """The rule that the job uses."""
        return rules.LEGW.from_epochs(self._epochs, epoch_size=self._size, base_batch=base_batch, base_warmup="rule")


class SuitingScale(ScalingRuleBase):
    """The rule that suits the optimizer: AdamScale for Adam and AdamW, swell's ``auto_by_gain`` for the others."""

    def rule(self, optimizer: Optimizer, base_batch: int) -> Rule:
        """The rule that the job uses."""
        name = type(optimizer).__name__
        return rules.AdamScale() if name in _ADAM else rules.auto_by_gain(name)


@dataclass(frozen=True, slots=True)
class ByNoise:
    """A rule's factors with the progress of the measured gain, by which AdaptDL counts under every rule."""

    rule: Rule
    progress: Callable[[float], float] = field(repr=False)  # the gain at a scale

    def factors(self, state: ScaleState) -> Factors:
        """The factors of the rule."""
        return self.rule.factors(state)

    def gain(self, state: ScaleState) -> float:
        """The gain by the gradient's noise."""
        return self.progress(state.scale)


def by_noise(rule: Rule, progress: Callable[[float], float], *, num_groups: int) -> Rule:
    """The rule with AdaptDL's count of progress; a rule that measures the gain of a single group stays as it is."""
    inner = rule
    while (next_inner := getattr(inner, "rule", None)) is not None:
        inner = next_inner
    measures = isinstance(inner, (rules.AdaScale, rules.AdamScale))
    return rule if measures and num_groups == 1 else ByNoise(rule, progress)


class _OwnScale:
    """The user's ``scale_lr`` as a rule; it returns one number for all groups, or one for each in their order."""

    def __init__(self, own: ScalingRuleBase, num_groups: int) -> None:
        self._own, self._num_groups = own, num_groups
        self._step: tuple[float, int] | None = None
        self._group = 0  # the group whose factors are asked for next, in this step
        self._factors = np.ones(num_groups)

    def factors(self, state: ScaleState) -> Factors:
        if self._step != (state.scale, state.samples):
            self._step, self._group = (state.scale, state.samples), 0
            factors = np.asarray(self._own.scale_lr(state.scale), dtype=float)
            if factors.shape not in ((), (1,), (self._num_groups,)) or not np.all(
                np.isfinite(factors) & (factors >= 0)
            ):
                raise ConfigError(
                    f"{type(self._own).__name__}.scale_lr({state.scale:g}) is {factors.tolist()}; expected one finite "
                    f"number, 0 or more, or {self._num_groups} of them, one for each parameter group. Return that."
                )
            self._factors = np.broadcast_to(factors, (self._num_groups,))
        factor = self._factors[self._group % self._num_groups]
        self._group += 1
        return Factors(lr=float(factor))

    def gain(self, state: ScaleState) -> float:
        return rules.AdaScale().gain(state)
