"""Rules on Keras optimizers: the one that is meant, and its factors held while one update is applied."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from swell.core.protocols import Rule
from swell.core.types import Factors, Moments, ScaleState
from swell.rules import as_rule, auto, suits

# Which of an optimizer's attributes each factor reaches, and how: "times" multiplies, "power" is an exponent.
_REACH: dict[str, tuple[tuple[str, ...], str]] = {
    "eps": (("epsilon",), "times"),
    "weight_decay": (("weight_decay",), "times"),
    "beta_power": (("beta_1", "beta_2"), "power"),
    "momentum_power": (("momentum",), "power"),
    "ema_power": (("ema_momentum",), "power"),
}


def rule_for(given: Any, inner: Any) -> Rule:
    """The rule that a user's choice means for this optimizer, with a warning where it does not suit it."""
    name = type(inner).__name__
    if name == "Adam" and inner.weight_decay:
        name = "AdamW"  # Keras's weight decay is decoupled on every optimizer
    if given == "auto":
        return auto(name)
    rule = as_rule(given)
    unsuited = suits(rule, name)
    if unsuited:
        warnings.warn(unsuited, stacklevel=4)
    return rule


def moving(rule: Rule, inner: Any) -> frozenset[str]:
    """Which hyper-parameters a rule may move on this optimizer, besides the learning rate; found by asking it.

    What never moves stays the plain number it is, so that a compiled step is no larger than it must be.
    """
    probe = Moments(signal=1.0, noise=1.0)
    states = [
        ScaleState(scale=scale, base_batch=1, moments=known, preconditioned=known, progress=progress, samples=1)
        for scale in (0.5, 3.0)
        for progress in (0.0, 1e9)
        for known in (None, probe)
    ]
    answers = [rule.factors(state) for state in states]
    plain = Factors()
    found = {name for name in _REACH if any(getattr(answer, name) != getattr(plain, name) for answer in answers)}
    return frozenset(name for name in found if any(_value(inner, attribute) for attribute in _REACH[name][0]))


def _value(inner: Any, attribute: str) -> Any:
    if attribute == "ema_momentum" and not getattr(inner, "use_ema", False):
        return None
    return getattr(inner, attribute, None)


@contextmanager
def scaled(inner: Any, told: Mapping[str, Any], names: frozenset[str], iterations: Any) -> Iterator[None]:
    """Hold the factors ``told`` (floats, or tensors inside a compiled step) on the optimizer while the body applies it.

    The base values are back when it ends: schedules, callbacks and the user never meet a factor. Attributes are set
    past Keras's tracking, which would otherwise take what is shown here for state of the optimizer.
    """
    held = vars(inner)
    before = dict(held)
    rate = inner._learning_rate
    shown: dict[str, Any] = {"_learning_rate": lambda: _rate(rate, iterations) * told["lr"]}
    for name in names:
        attributes, how = _REACH[name]
        for attribute in attributes:
            value = _value(inner, attribute)
            if value:
                shown[attribute] = value * told[name] if how == "times" else value ** told[name]
    if "beta_power" in names:
        shown["_iterations"] = _BiasClock(inner._iterations, told["effective_step"])
    held.update(shown)
    try:
        yield
    finally:
        held.update({name: before[name] for name in shown})


def _rate(rate: Any, iterations: Any) -> Any:
    """The base learning rate at this update, as Keras itself finds it."""
    from keras.optimizers.schedules import LearningRateSchedule

    if isinstance(rate, LearningRateSchedule):
        return rate(iterations)
    return rate() if callable(rate) and not hasattr(rate, "assign") else rate


class _BiasClock:
    """Stands for ``iterations`` while betas move: shows the step whose bias correction is due, counts the real one."""

    def __init__(self, real: Any, effective_step: Any) -> None:
        self._real, self._shown = real, effective_step

    def __add__(self, other: int) -> Any:
        return self._shown + (other - 1)

    def assign_add(self, value: int) -> Any:
        return self._real.assign_add(value)
