"""Which moments a rule uses, so that no others are measured."""

from __future__ import annotations

from swell.core.protocols import MetricRule, Rule, SecondMomentRule, WrappingRule
from swell.errors import ConfigError
from swell.rules.legw import LEGW
from swell.rules.user import UserRule

WARM_UP_STEPS = 5  # updates before which a second moment says too little to measure gradients in its metric


def needs_preconditioned(rule: Rule) -> bool:
    """Whether a rule, or the one it wraps, uses moments in the optimizer's own metric.

    A rule of your own says so with an attribute ``metric = "preconditioned"``.

    >>> from swell.rules import AdamScale, KeepDecayTime, Linear
    >>> needs_preconditioned(KeepDecayTime(rule=AdamScale())), needs_preconditioned(Linear())
    (True, False)
    """
    inner = _innermost(rule)
    return isinstance(inner, MetricRule) and inner.metric == "preconditioned"


def needs_dual(rule: Rule) -> bool:
    """Whether a rule, or the one it wraps, uses moments in the dual norm of steps by signs or orthogonal matrices.

    >>> from swell.rules import AdamScale, KeepDecayTime
    >>> needs_dual(KeepDecayTime(rule=AdamScale(metric="dual"))), needs_dual(AdamScale())
    (True, False)
    """
    inner = _innermost(rule)
    return isinstance(inner, MetricRule) and inner.metric == "dual"


def refuse_dual(rule: Rule, where: str) -> None:
    """Refuse a rule by the dual norm where that is not measured."""
    if needs_dual(rule):
        raise ConfigError(
            f"rule is {rule!r}, and {where} does not measure gradients in a dual norm; expected a rule by another "
            "metric. Use AdamScale(metric='plain'), or train with swell.Job."
        )


def carries_second_moment(rule: Rule) -> bool:
    """Whether a rule wants Adam's second moment carried over when the batch changes.

    >>> from swell.rules import AdamMeanGain, KeepDecayTime, Root
    >>> carries_second_moment(KeepDecayTime(rule=AdamMeanGain())), carries_second_moment(Root())
    (True, False)
    """
    inner = _innermost(rule)
    return isinstance(inner, SecondMomentRule) and inner.second_moment == "follow"


def may_use_moments_at_base(rule: Rule) -> bool:
    """Whether a rule may look at the gradient's noise at the base batch too, where swell's own rules change nothing.

    >>> from swell.rules import AdaScale, KeepDecayTime, from_function
    >>> may_use_moments_at_base(KeepDecayTime(rule=AdaScale())), may_use_moments_at_base(from_function(lambda state: 1))
    (False, True)
    """
    inner = _innermost(rule)
    if isinstance(inner, UserRule):
        return not inner.takes_scale
    return not type(inner).__module__.startswith("swell.rules.")


def unchanged_at_base(rule: Rule) -> bool:
    """Whether a rule certainly changes nothing at the base batch, wherever the run is: not if it warms up, or is yours.

    >>> from swell.rules import LEGW, KeepDecayTime, MeanGain
    >>> unchanged_at_base(KeepDecayTime(rule=MeanGain())), unchanged_at_base(LEGW(base_warmup="rule"))
    (True, False)
    """
    inner = _innermost(rule)
    return type(inner).__module__.startswith("swell.rules.") and not isinstance(inner, (UserRule, LEGW))


def _innermost(rule: Rule) -> object:
    inner: object = rule
    while isinstance(inner, WrappingRule) and inner.rule is not None:
        inner = inner.rule
    return inner
