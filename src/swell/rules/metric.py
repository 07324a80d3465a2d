"""Which moments a rule uses, so that no others are measured."""

from __future__ import annotations

from swell.core.protocols import MetricRule, Rule, WrappingRule

WARM_UP_STEPS = 5  # updates before which a second moment says too little to measure gradients in its metric


def needs_preconditioned(rule: Rule) -> bool:
    """Whether a rule, or the one it wraps, uses moments in the optimizer's own metric.

    A rule of your own says so with an attribute ``metric = "preconditioned"``.

    >>> from swell.rules import AdamScale, KeepDecayTime, Linear
    >>> needs_preconditioned(KeepDecayTime(rule=AdamScale())), needs_preconditioned(Linear())
    (True, False)
    """
    inner: object = rule
    while isinstance(inner, WrappingRule) and inner.rule is not None:
        inner = inner.rule
    return isinstance(inner, MetricRule) and inner.metric == "preconditioned"
