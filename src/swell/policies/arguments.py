"""What every policy asks of its arguments besides whole numbers: finite numbers, flags, known words."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from swell.errors import ConfigError


def number(
    value: Any, *, name: str, above: float | None = None, at_least: float | None = None, example: float | None = None
) -> float:
    """The value as a finite number, greater than ``above`` or at least ``at_least``.

    >>> number("a", name="slack", at_least=0, example=0.08)
    Traceback (most recent call last):
    swell.errors.ConfigError: slack is 'a'; expected a finite number, 0 or more. Give for example 0.08.
    """
    expected = "a finite number" + (f" above {above:g}" if above is not None else "")
    expected += f", {at_least:g} or more" if at_least is not None else ""
    try:
        plain = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError, OverflowError):
        plain = math.nan
    too_small = (above is not None and plain <= above) or (at_least is not None and plain < at_least)
    if not math.isfinite(plain) or too_small:
        suggestion = 1 + (above or 0.0) if example is None else example
        raise ConfigError(f"{name} is {value!r}; expected {expected}. Give for example {suggestion:g}.")
    return plain


def flag(value: Any, *, name: str) -> bool:
    """The value, if it is ``True`` or ``False``: the text ``"no"`` would count as true."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; expected True or False. Give one of them, or leave {name} out.")
    return value


def word(value: Any, *, name: str, known: Iterable[str]) -> str:
    """The value, if it is one of the known words."""
    known = tuple(known)
    if not isinstance(value, str) or value not in known:
        raise ConfigError(f"{name} is {value!r}; expected one of {', '.join(map(repr, known))}. Give one of them.")
    return value


def assign(policy: Any, /, **fields: Any) -> None:
    """Set checked fields of a frozen policy while it is being built."""
    for name, value in fields.items():
        object.__setattr__(policy, name, value)
