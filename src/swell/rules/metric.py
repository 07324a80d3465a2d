"""Which figures a rule looks at, so that nothing is measured that nobody reads."""

from __future__ import annotations

from swell.core.protocols import Rule

WARM_UP_STEPS = 5  # updates before which a second moment says too little to measure gradients in its metric


def needs_preconditioned(rule: Rule) -> bool:
    """Whether a rule, or the one it wraps, is made of moments in the optimizer's own metric.

    A rule of your own says so with an attribute ``metric = "preconditioned"``.

    >>> from swell.rules import AdamScale, KeepDecayTime, Linear
    >>> needs_preconditioned(KeepDecayTime(rule=AdamScale())), needs_preconditioned(Linear())
    (True, False)
    """
    while (inner := getattr(rule, "rule", None)) is not None:
        rule = inner
    return getattr(rule, "metric", None) == "preconditioned"
