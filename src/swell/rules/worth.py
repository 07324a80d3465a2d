"""By which law a rule counts what a step is worth, so that a policy can choose batches by the same law."""

from __future__ import annotations

from swell.core.protocols import Rule, WorthRule, WrappingRule


def worth_power(rule: Rule) -> float:
    """The power of the measured gain in a step's worth; the rest of the worth is a power of the scale.

    1 for the gain itself, 0.5 for its geometric mean with the scale. A rule that does not say is taken for 1, the more
    cautious one. A rule of your own says so with an attribute ``worth_power``.

    >>> from swell.rules import AdaScale, KeepDecayTime, MeanGain
    >>> worth_power(AdaScale()), worth_power(KeepDecayTime(MeanGain()))
    (1.0, 0.5)
    """
    inner: object = rule
    while isinstance(inner, WrappingRule) and inner.rule is not None:
        inner = inner.rule
    return float(inner.worth_power) if isinstance(inner, WorthRule) else 1.0
