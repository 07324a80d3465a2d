"""A policy from whatever a user gives: a number, a trace, a function, a class, a policy."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from swell.core.counts import as_whole, whole_number
from swell.core.protocols import Policy
from swell.core.types import Observation
from swell.errors import ConfigError
from swell.policies.fixed import Fixed
from swell.policies.trace import Trace


@dataclass(frozen=True, slots=True)
class UserPolicy:
    """A user's function, or object without a base, as a policy; ``as_policy`` makes it."""

    choose: Callable[[Observation], int]
    base: int
    over: Callable[[Observation], bool] | None = None  # whether the run is over; None for never

    @property
    def policy(self) -> Any:
        """The user's object or function, which may have abilities of its own."""
        return getattr(self.choose, "__self__", self.choose)

    def batch(self, seen: Observation) -> int:
        return self.choose(seen)

    def finished(self, seen: Observation) -> bool:
        return self.over is not None and self.over(seen)

    def __repr__(self) -> str:
        name = getattr(self.choose, "__qualname__", None) or type(self.choose).__name__
        return f"UserPolicy({name}, base={self.base})"


def as_policy(source: Any, *, base: int | None = None) -> Policy:
    """The policy that a user means.

    ======================================= ==========================================
    source                                  policy
    ======================================= ==========================================
    a whole number                          ``Fixed(number, base=base)``
    a path, or text that ends in ``.csv``   ``Trace(path, base=base)``
    a list, a tuple, an array               ``Trace(sizes, base=base)``
    a function ``f(seen) -> int``           its answers; ``base`` is needed
    a class with a method ``batch(seen)``   an object of it, created without arguments
    an object with ``batch(seen)``          itself; ``base`` is needed if it has none
    ======================================= ==========================================

    ``base`` is the batch the learning rate was tuned for. ``ConfigError`` if it contradicts the policy's own.

    >>> as_policy(256, base=64)
    Fixed(size=256, base=64, tolerance=0.0, micro=1)
    >>> as_policy(lambda seen: 64 if seen.epoch < 5 else 512, base=64).base
    64
    """
    if base is not None:
        base = whole_number(base, name="base")
    if isinstance(source, type):
        source = _instance(source)
    if hasattr(source, "batch"):
        return _from_object(source, base)
    if as_whole(source) is not None or isinstance(source, (bool, float, np.generic)):
        return Fixed(whole_number(source, name="batch"), base=base)
    if isinstance(source, os.PathLike) or (isinstance(source, str) and source.lower().endswith(".csv")):
        return Trace(source, base=base)
    if isinstance(source, (list, tuple, np.ndarray)):
        return Trace(source, base=base)
    if callable(source):
        if base is None and hasattr(source, "base"):
            base = whole_number(source.base, name="base")
        return UserPolicy(_checked_signature(source), _required_base(base, source))
    raise ConfigError(
        f"batch is {source!r}; expected a whole number, a policy such as Ramp(64, 1024, over=0.5, unit='fraction'), a "
        "function of the observation, a list of sizes or the path of a .csv trace. Give one of these."
    )


def _instance(cls: type) -> Any:
    try:
        inspect.signature(cls).bind()
    except TypeError as error:
        raise ConfigError(
            f"batch is the class {cls.__name__}, which needs arguments ({error}); expected an object. Give for example "
            f"batch={cls.__name__}(...)."
        ) from None
    except ValueError:
        pass  # a class without a readable signature
    policy = cls()
    if not hasattr(policy, "batch"):
        raise ConfigError(
            f"batch is the class {cls.__name__}, which has no method `batch`; expected `batch(self, seen) -> int`. Add "
            "it to the class."
        )
    return policy


def _from_object(source: Any, base: int | None) -> Policy:
    choose = _checked_signature(source.batch)
    own = getattr(source, "base", None)
    if own is None:
        return UserPolicy(choose, _required_base(base, source), getattr(source, "finished", None))
    if whole_number(own, name=f"{type(source).__name__}.base") != base and base is not None:
        raise ConfigError(
            f"base is {base} and the policy's own base is {own}; expected one batch that the learning rate was tuned "
            "for. Leave one of them out."
        )
    return source


def _checked_signature(choose: Any) -> Callable[[Observation], int]:
    try:
        inspect.signature(choose).bind(None)
    except TypeError as error:
        raise ConfigError(
            f"batch is {choose!r}, which cannot be called ({error}); expected a function of one argument, the "
            "observation. Write it as `def choose(seen): return 256`."
        ) from None
    except ValueError:
        pass  # a built-in without a readable signature
    return choose


def _required_base(base: int | None, source: object) -> int:
    if base is None:
        raise ConfigError(
            f"base is None and {source!r} has no base; expected the global batch the learning rate was tuned for. Give "
            "base=64, or set the attribute `base`."
        )
    return base
