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


def samples(value: Any, name: str, *, least: int = 1, example: int = 32) -> int:
    """The value as a count of samples, at least ``least``; ``name`` is how the message calls it.

    Where it is none but reads as one (text, a float without a fraction), that is the example the message gives.

    >>> samples(0, "base")
    Traceback (most recent call last):
    swell.errors.ConfigError: base is 0; expected a whole number of samples, 1 or more. Give one, for example base=32.
    """
    whole = as_whole(value)
    if whole is None or whole < least:
        meant = _as_read(value)
        raise ConfigError(
            f"{name} is {value!r}; expected a whole number of samples, {least} or more. "
            f"Give one, for example {name}={max(least, example) if meant is None or meant < least else meant}."
        )
    return whole


def _as_read(value: Any) -> int | None:
    """The whole number that somebody who wrote this has in mind, if any."""
    try:
        plain = float(value) if isinstance(value, (str, float)) else math.nan
    except ValueError:
        return None
    return int(plain) if plain.is_integer() else None


def number(
    value: Any, name: str, *, above: float | None = None, least: float | None = None, example: float | None = None
) -> float:
    """The value as a finite number, greater than ``above`` or at least ``least``.

    >>> number("a", "slack", least=0, example=0.08)
    Traceback (most recent call last):
    swell.errors.ConfigError: slack is 'a'; expected a finite number, 0 or more. Give one, for example slack=0.08.
    """
    wanted = "a finite number" + (f" above {above:g}" if above is not None else "")
    wanted += f", {least:g} or more" if least is not None else ""
    try:
        plain = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError, OverflowError):
        plain = math.nan
    too_small = (above is not None and plain <= above) or (least is not None and plain < least)
    if not math.isfinite(plain) or too_small:
        given = 1 + (above or 0.0) if example is None else example
        raise ConfigError(f"{name} is {value!r}; expected {wanted}. Give one, for example {name}={given:g}.")
    return plain


def flag(value: Any, name: str) -> bool:
    """The value, ``True`` or ``False`` and nothing that merely counts as one of them: ``"no"`` would count as true."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; expected True or False. Give {name}=True or leave it out.")
    return value


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
