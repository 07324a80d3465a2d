"""Whatever a user gives as a policy, as one: a number, a trace, a function, a class, a policy."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from swell.core.protocols import Policy
from swell.core.types import Observation
from swell.errors import ConfigError
from swell.policies.arguments import as_whole, samples
from swell.policies.fixed import Fixed
from swell.policies.trace import Trace


@dataclass(frozen=True, slots=True)
class UserPolicy:
    """A user's function, or object without a base, as a policy; ``as_policy`` makes it."""

    choose: Callable[[Observation], int]
    base: int
    over: Callable[[Observation], bool] | None = None  # never over

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


def as_policy(given: Any, *, base: int | None = None) -> Policy:
    """The policy that was meant.

    ======================================= ==========================================
    given                                   gives
    ======================================= ==========================================
    a whole number                          ``Fixed(number, base=base)``
    a path, or text that ends in ``.csv``   ``Trace(path, base=base)``
    a list, a tuple, an array               ``Trace(sizes, base=base)``
    a function ``f(seen) -> int``           its answers; ``base`` is needed
    a class with a method ``batch(seen)``   an object of it, made without arguments
    an object with ``batch(seen)``          itself; ``base`` is needed where it has none
    ======================================= ==========================================

    ``base`` is the batch the learning rate was tuned for. One that contradicts a policy's own is a ``ConfigError``.

    >>> as_policy(256, base=64)
    Fixed(size=256, base=64, tolerance=0.0, micro=1)
    >>> as_policy(lambda seen: 64 if seen.epoch < 5 else 512, base=64).base
    64
    """
    if base is not None:
        base = samples(base, "base")
    if isinstance(given, type):
        given = _made(given)
    if hasattr(given, "batch"):
        return _from_object(given, base)
    if as_whole(given) is not None or isinstance(given, (bool, float, np.generic)):
        return Fixed(samples(given, "batch"), base=base)
    if isinstance(given, os.PathLike) or (isinstance(given, str) and given.lower().endswith(".csv")):
        return Trace(given, base=base)
    if isinstance(given, (list, tuple, np.ndarray)):
        return Trace(given, base=base)
    if callable(given):
        if base is None and hasattr(given, "base"):
            base = samples(given.base, "base")
        return UserPolicy(_takes_one(given), _needed(base, given))
    raise ConfigError(
        f"batch is {given!r}; expected a whole number, a policy such as Ramp(64, 1024, over=0.5, unit='fraction'), a "
        "function of the observation, a list of sizes or the path of a .csv trace. Give one of these."
    )


def _made(cls: type) -> Any:
    try:
        inspect.signature(cls).bind()
    except TypeError as error:
        raise ConfigError(
            f"the policy class {cls.__name__} cannot be made without arguments ({error}). "
            f"Give an object of it: batch={cls.__name__}(...)."
        ) from None
    except ValueError:
        pass  # a class without a readable signature; making it will tell
    made = cls()
    if not hasattr(made, "batch"):
        raise ConfigError(
            f"the class {cls.__name__} has no method `batch`; expected `batch(self, seen) -> int`. Add it to the class."
        )
    return made


def _from_object(given: Any, base: int | None) -> Policy:
    choose = _takes_one(given.batch)
    own = getattr(given, "base", None)
    if own is None:
        return UserPolicy(choose, _needed(base, given), getattr(given, "finished", None))
    if samples(own, f"{type(given).__name__}.base") != base and base is not None:
        raise ConfigError(
            f"base is {base} and the policy's own base is {own}; expected one value, the batch the learning rate was "
            "tuned for. Leave one of them out."
        )
    return given


def _takes_one(choose: Any) -> Callable[[Observation], int]:
    try:
        inspect.signature(choose).bind(None)
    except TypeError as error:
        raise ConfigError(
            f"{choose!r} cannot be asked for a batch ({error}); expected a function of one argument, the observation. "
            "Write it as `def choose(seen): return 256`."
        ) from None
    except ValueError:
        pass  # a built-in without a readable signature
    return choose


def _needed(base: int | None, given: object) -> int:
    if base is None:
        raise ConfigError(
            f"the base batch is not known: {given!r} does not name it; expected the global batch the learning rate was "
            "tuned for. Give base=64, or set the attribute `base`."
        )
    return base
