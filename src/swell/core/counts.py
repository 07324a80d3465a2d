"""Whole numbers as users give them: checked once, with an error that says how to mend them."""

from __future__ import annotations

import operator
from typing import Any

from swell.errors import ConfigError


def whole_number(value: Any, *, name: str, at_least: int = 1, at_most: int | None = None) -> int:
    """``value`` as an ``int`` within its limits; numpy integers are taken, ``bool``, ``float`` and text are refused.

    >>> whole_number(32, name="global_batch")
    32
    >>> whole_number(0, name="global_batch")
    Traceback (most recent call last):
    ...
    swell.errors.ConfigError: global_batch=0 is too small: give a whole number of at least 1.
    """
    wanted = f"a whole number of at least {at_least}" + ("" if at_most is None else f" and at most {at_most}")
    if isinstance(value, bool):
        raise ConfigError(f"{name}={value!r} is a truth value, not a number: give {wanted}.")
    try:
        number = operator.index(value)
    except TypeError:
        raise ConfigError(f"{name}={value!r} is of type {type(value).__name__}: give {wanted}.") from None
    if number < at_least:
        raise ConfigError(f"{name}={number} is too small: give {wanted}.")
    if at_most is not None and number > at_most:
        raise ConfigError(f"{name}={number} is too large: give {wanted}.")
    return number
