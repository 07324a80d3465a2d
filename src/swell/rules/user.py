"""A rule from a user's own function, or from an object that has factors alone."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from swell.core.types import Factors, ScaleState
from swell.errors import ConfigError


@dataclass(frozen=True, slots=True)
class UserRule:
    """A rule whose factors come from ``function``; a step is worth ``scale`` base steps.

    A number is the factor of the learning rate and changes nothing else; a ``Factors`` sets everything. Progress counts
    samples, as a schedule in epochs expects. Define a class with both ``factors`` and ``gain`` for another count.
    """

    function: Callable[[Any], Any]
    takes_scale: bool  # whether it is called with the scale alone, or with the whole ScaleState

    @property
    def metric(self) -> str:
        """The moments that the user's function or object uses, by its own attribute ``metric``."""
        return getattr(getattr(self.function, "__self__", self.function), "metric", "plain")

    def factors(self, state: ScaleState) -> Factors:
        result = self.function(state.scale if self.takes_scale else state)
        factors = result if isinstance(result, Factors) else Factors(lr=self._number(result))
        if not all(0 <= factor < math.inf for factor in dataclasses.astuple(factors)):
            raise ConfigError(
                f"the result of {self} is {factors} at scale {state.scale:g}; expected finite numbers, 0 or more. "
                "Change the function."
            )
        return factors

    def gain(self, state: ScaleState) -> float:
        return state.scale

    def _number(self, result: Any) -> float:
        try:
            return float(result)
        except (TypeError, ValueError):
            raise ConfigError(
                f"the result of {self} is {result!r}; expected a number. Return the factor of the learning rate, or a "
                "Factors (from swell.core.types)."
            ) from None

    def __str__(self) -> str:
        name = getattr(self.function, "__qualname__", None) or getattr(self.function, "__name__", repr(self.function))
        return f"rule {name}"


def from_function(function: Callable[[Any], Any]) -> UserRule:
    """A rule from a function of one argument.

    It is called with the scale, a float, if its parameter is called ``scale`` or is annotated ``float``, or if it is
    not written in Python (``math.sqrt``, ``numpy.sqrt``); with the whole :class:`ScaleState` otherwise.

    >>> from_function(lambda scale: scale**0.7).factors(ScaleState(scale=8.0, base_batch=32)).lr
    4.28...
    >>> from_function(lambda state: state.scale / 2).factors(ScaleState(scale=8.0, base_batch=32)).lr
    4.0
    """
    if inspect.isbuiltin(function) or isinstance(function, np.ufunc):
        return UserRule(function, takes_scale=True)
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if not positional or needed not in ([], positional[:1]):
        raise ConfigError(
            f"rule is {function!r}{inspect.signature(function)}; expected a function of one argument, 'scale' (a "
            "float) or anything else (a ScaleState). Bind the others with functools.partial."
        )
    first = positional[0]
    return UserRule(function, takes_scale=first.name == "scale" or first.annotation in (float, "float"))
