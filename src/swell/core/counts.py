"""Whole numbers as users give them, checked in one place."""

from __future__ import annotations

import math
import operator
from typing import Any

from swell.errors import ConfigError


def whole_number(value: Any, *, name: str, at_least: int = 1, at_most: int | None = None, example: int = 32) -> int:
    """``value`` as an ``int`` within its limits, or ``ConfigError``; numpy integers are accepted.

    A ``bool``, a ``float`` or text is refused. If it reads as a number within the limits, the message suggests that
    number, otherwise ``example``.

    >>> whole_number(32, name="global_batch")
    32
    >>> whole_number(0, name="global_batch")
    Traceback (most recent call last):
    ...
    swell.errors.ConfigError: global_batch is 0; expected a whole number, 1 or more. Give for example 32.
    >>> whole_number("64", name="global_batch")
    Traceback (most recent call last):
    ...
    swell.errors.ConfigError: global_batch is '64'; expected a whole number, 1 or more. Give for example 64.
    """
    number = as_whole(value)
    if number is not None and number >= at_least and (at_most is None or number <= at_most):
        return number
    limits = f"{at_least} or more" if at_most is None else f"{at_least} to {at_most}"
    suggestion = _probable(value)
    if suggestion is None or suggestion < at_least:
        suggestion = max(at_least, example)
    if at_most is not None:
        suggestion = min(suggestion, at_most)
    raise ConfigError(f"{name} is {value!r}; expected a whole number, {limits}. Give for example {suggestion}.")


def as_whole(value: Any) -> int | None:
    """The value as an ``int``; None if it is not a whole number. Integers of numpy are, bool, float and text are not.

    >>> as_whole(64), as_whole(64.0), as_whole(True)
    (64, None, None)
    """
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _probable(value: Any) -> int | None:
    """The whole number that text, or a float without a fraction, reads as."""
    try:
        number = float(value) if isinstance(value, (str, float)) else math.nan
    except ValueError:
        return None
    return int(number) if number.is_integer() else None
