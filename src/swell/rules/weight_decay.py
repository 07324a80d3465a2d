"""Decoupled weight decay that keeps its time scale in samples, around any rule."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from swell.core.protocols import Rule
from swell.core.types import Factors, ScaleState


@dataclass(frozen=True, slots=True)
class KeepDecayTime:
    r"""The rule's factors, with weight decay · κ / (lr factor).

    AdamW shrinks a weight by lr · λ per step and so forgets over 1 / (lr λ) steps, which are B / (lr λ) samples. That
    number of samples stays the same if lr · λ grows like κ: λ · √κ with lr · √κ, λ · κ with a constant lr, λ with the
    linear rule. If the rule's lr factor is 0, nothing decays anyway, and λ is not changed.

    For weight decay that is multiplied by the learning rate and added to the step: that of AdamW, Muon, Adafactor and
    SGD. Not for Adam's own ``weight_decay``, which passes through the second moment.

    References: Wang & Aitchison 2024, https://arxiv.org/abs/2405.13698 (the time scale); Bergsma et al. 2025,
    https://arxiv.org/abs/2505.13738 (over batch sizes).

    >>> from swell.rules.root import Root
    >>> KeepDecayTime(Root()).factors(ScaleState(scale=4.0, base_batch=32)).weight_decay
    2.0
    """

    rule: Rule

    def factors(self, state: ScaleState) -> Factors:
        factors = self.rule.factors(state)
        if factors.lr == 0:
            return factors
        return dataclasses.replace(factors, weight_decay=state.scale / factors.lr)

    def gain(self, state: ScaleState) -> float:
        return self.rule.gain(state)
