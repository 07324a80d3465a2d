"""Whether the values in a line of a log are of the kinds that its event has; a log may come from anywhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

_LARGEST = 10**300  # beyond it a number is no float, and soon Python refuses to print it


def check_fields(cls: type, values: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` at the first value that the dataclass cannot have.

    >>> @dataclasses.dataclass
    ... class Lost:
    ...     step: int
    >>> check_fields(Lost, {"step": "many"})
    Traceback (most recent call last):
    ...
    TypeError: step is 'many'; expected int
    """
    hints = _hints(cls)
    for name, value in values.items():
        if name in hints and not _fits(value, hints[name]):
            expected = getattr(hints[name], "__name__", str(hints[name]))
            raise TypeError(f"{name} is {repr(value)[:80]}; expected {expected}")


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin is not None and (origin is Union or origin.__name__ == "UnionType"):
        return any(_fits(value, each) for each in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(each, arguments[0]) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            _fits(key, arguments[0]) and _fits(each, arguments[1]) for key, each in value.items()
        )
    if hint is float:
        return type(value) is float or _is_count(value)
    return _is_count(value) if hint is int else type(value) is hint


def _is_count(value: Any) -> bool:
    whole = type(value) is int or (type(value) is float and value.is_integer())
    return whole and -_LARGEST < value < _LARGEST
