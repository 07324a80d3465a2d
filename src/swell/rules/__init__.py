"""How hyper-parameters follow the batch size: pure functions of one step's state, not of the steps before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from swell.core.protocols import Rule
from swell.errors import ConfigError
from swell.rules.adam_mean_gain import AdamMeanGain
from swell.rules.adam_sde import AdamSDE
from swell.rules.adamscale import AdamScale
from swell.rules.adascale import AdaScale
from swell.rules.auto import CHOICES, Choice, auto, auto_by_gain, choice, dual_norm, suits
from swell.rules.bias_correction import effective_step
from swell.rules.constant import Constant
from swell.rules.ema import KeepAverageTime
from swell.rules.legw import LEGW
from swell.rules.linear import Linear
from swell.rules.mean_gain import MeanGain
from swell.rules.root import Root
from swell.rules.user import UserRule, from_function
from swell.rules.weight_decay import KeepDecayTime

__all__ = [
    "CHOICES",
    "LEGW",
    "RULES",
    "AdaScale",
    "AdamMeanGain",
    "AdamSDE",
    "AdamScale",
    "Choice",
    "Constant",
    "KeepAverageTime",
    "KeepDecayTime",
    "Linear",
    "MeanGain",
    "Root",
    "UserRule",
    "as_rule",
    "auto",
    "auto_by_gain",
    "choice",
    "dual_norm",
    "effective_step",
    "from_function",
    "suits",
]

RULES: dict[str, Callable[[], Rule]] = {
    "constant": Constant,
    "none": Constant,
    "linear": Linear,
    "root": Root,
    "sqrt": Root,
    "mean-gain": MeanGain,
    "adam-mean-gain": AdamMeanGain,
    "adascale": AdaScale,
    "adamscale": AdamScale,
    "dualscale": lambda: AdamScale(metric="dual"),
    "legw": LEGW,
    "adam-sde": AdamSDE,
}


def as_rule(rule: Any) -> Rule:
    """The rule that a user means by a rule, a name, a function, or an object with ``factors``.

    - an object with ``factors(state)`` and ``gain(state)``: itself;
    - an object with ``factors(state)`` only: its gain is the scale, as if every sample counted the same;
    - a name of ``RULES``, upper or lower case, ``_`` or ``-``;
    - a function of one argument, called with the scale if the argument is called ``scale`` (or annotated ``float``),
      otherwise with the whole ``ScaleState``. If it returns a number, that is the learning rate's factor. Its gain is
      the scale.

    ``"auto"`` depends on the optimizer: call :func:`auto` with its class name.

    >>> as_rule("sqrt")
    Root()
    >>> from swell.core.types import ScaleState
    >>> as_rule(lambda scale: scale**0.25).factors(ScaleState(scale=16.0, base_batch=32)).lr
    2.0
    """
    if isinstance(rule, str):
        name = rule.lower().replace("_", "-")
        if name in RULES:
            return RULES[name]()
        if name == "auto":
            raise ConfigError(
                "rule is 'auto'; expected another one, because 'auto' depends on the optimizer. Call swell.rules.auto "
                "with its class name."
            )
    elif isinstance(rule, type):
        raise ConfigError(f"rule is the class {rule.__name__}; expected an instance. Write {rule.__name__}().")
    elif isinstance(rule, Rule):
        return rule
    elif callable(getattr(rule, "factors", None)):
        return UserRule(rule.factors, takes_scale=False)
    elif callable(rule):
        return from_function(rule)
    raise ConfigError(
        f"rule is {rule!r}; expected 'auto', one of {', '.join(map(repr, RULES))}, a function f(scale) or f(state) "
        "that returns the learning rate's factor, or an object with factors(state) -> Factors. Give one of these."
    )
