"""What every policy asks of the numbers it is given: whole sizes, sensible fractions, known words."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

from swell.errors import ConfigError


def as_whole(value: Any) -> int | None:
    """The value as an ``int``, or None where it is no whole number: bool, float and text are not, numpy's integers are.

    >>> as_whole(64), as_whole(64.0), as_whole(True)
    (64, None, None)
    """
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def samples(value: Any, name: str, *, least: int = 1) -> int:
    """The value as a count of samples, at least ``least``; ``name`` is how the message calls it.

    >>> samples(0, "base")
    Traceback (most recent call last):
    swell.errors.ConfigError: base is 0; expected a whole number of samples, 1 or more. Give one, for example base=32.
    """
    whole = as_whole(value)
    if whole is None or whole < least:
        raise ConfigError(
            f"{name} is {value!r}; expected a whole number of samples, {least} or more. "
            f"Give one, for example {name}={max(least, 32)}."
        )
    return whole


def number(value: Any, name: str, *, above: float | None = None, least: float | None = None) -> float:
    """The value as a finite number, greater than ``above`` or at least ``least``."""
    wanted = "a finite number" + (f" above {above:g}" if above is not None else "")
    wanted += f", {least:g} or more" if least is not None else ""
    try:
        plain = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError, OverflowError):
        plain = math.nan
    too_small = (above is not None and plain <= above) or (least is not None and plain < least)
    if not math.isfinite(plain) or too_small:
        raise ConfigError(f"{name} is {value!r}; expected {wanted}. Change {name}.")
    return plain


def word(value: Any, name: str, known: Iterable[str]) -> str:
    """The value, one of the known words."""
    known = tuple(known)
    if not isinstance(value, str) or value not in known:
        raise ConfigError(f"{name} is {value!r}; expected one of {', '.join(map(repr, known))}. Change {name}.")
    return value


def assign(policy: Any, /, **fields: Any) -> None:
    """Set the fields of a frozen policy while it is being built, once they are checked."""
    for name, value in fields.items():
        object.__setattr__(policy, name, value)
