"""Rules on Keras optimizers: the rule that a user's choice means, and its factors during one update."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from swell.core.protocols import Rule
from swell.core.types import Factors, Moments, ScaleState
from swell.rules import as_rule, auto, suits

# The attributes of an optimizer that each factor changes, and how: "times" multiplies, "power" is an exponent.
_ATTRIBUTES: dict[str, tuple[tuple[str, ...], str]] = {
    "eps": (("epsilon",), "times"),
    "weight_decay": (("weight_decay",), "times"),
    "beta_power": (("beta_1", "beta_2"), "power"),
    "momentum_power": (("momentum",), "power"),
    "ema_power": (("ema_momentum",), "power"),
}


def rule_for(choice: Any, inner: Any) -> Rule:
    """The rule that a user's choice means for this optimizer, with a warning if it does not suit it."""
    name = type(inner).__name__
    if name == "Adam" and inner.weight_decay:
        name = "AdamW"  # Keras's weight decay is decoupled on every optimizer
    if choice == "auto":
        return auto(name)
    rule = as_rule(choice)
    warning = suits(rule, name)
    if warning:
        warnings.warn(warning, stacklevel=4)
    return rule


def moved_by(rule: Rule, inner: Any) -> frozenset[str]:
    """The factors besides the learning rate by which a rule may change this optimizer, found by asking the rule.

    What never moves stays a plain number, so that a compiled step is no larger than it must be.
    """
    sample = Moments(signal=1.0, noise=1.0)
    states = [
        ScaleState(scale=scale, base_batch=1, moments=moments, preconditioned=moments, progress=progress, samples=1)
        for scale in (0.5, 3.0)
        for progress in (0.0, 1e9)
        for moments in (None, sample)
    ]
    answers = [rule.factors(state) for state in states]
    plain = Factors()
    moved = {name for name in _ATTRIBUTES if any(getattr(answer, name) != getattr(plain, name) for answer in answers)}
    return frozenset(name for name in moved if any(_value(inner, attribute) for attribute in _ATTRIBUTES[name][0]))


def _value(inner: Any, attribute: str) -> Any:
    if attribute == "ema_momentum" and not getattr(inner, "use_ema", False):
        return None
    return getattr(inner, attribute, None)


@contextmanager
def scaled(inner: Any, factors: Mapping[str, Any], names: frozenset[str], iterations: Any) -> Iterator[None]:
    """Change the optimizer by ``factors`` (floats, or tensors inside a compiled step) while the body applies it.

    The base values are back when it ends: schedules, callbacks and the user never see a factor. Attributes are set
    past Keras's tracking, which would otherwise take the changed ones for state of the optimizer.
    """
    attributes = vars(inner)
    before = dict(attributes)
    rate = inner._learning_rate
    changed: dict[str, Any] = {"_learning_rate": lambda: _rate(rate, iterations) * factors["lr"]}
    for name in names:
        reached, how = _ATTRIBUTES[name]
        for attribute in reached:
            value = _value(inner, attribute)
            if value:
                changed[attribute] = value * factors[name] if how == "times" else value ** factors[name]
    if "beta_power" in names:
        changed["_iterations"] = _EffectiveIterations(inner._iterations, factors["effective_step"])
    attributes.update(changed)
    try:
        yield
    finally:
        attributes.update({name: before[name] for name in changed})


def _rate(rate: Any, iterations: Any) -> Any:
    """The base learning rate at this update, as Keras itself computes it."""
    from keras.optimizers.schedules import LearningRateSchedule

    if isinstance(rate, LearningRateSchedule):
        return rate(iterations)
    return rate() if callable(rate) and not hasattr(rate, "assign") else rate


class _EffectiveIterations:
    """Replaces ``iterations`` while betas move: shows the step that bias correction is due for, counts real updates."""

    def __init__(self, iterations: Any, effective_step: Any) -> None:
        self._iterations, self._effective_step = iterations, effective_step

    def __add__(self, other: int) -> Any:
        return self._effective_step + (other - 1)

    def assign_add(self, value: int) -> Any:
        return self._iterations.assign_add(value)
