"""What a policy offers besides a batch, wherever it is in a nest of policies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from swell.core.protocols import WrappingPolicy

Ability = TypeVar("Ability")


def layers(policy: object) -> Iterator[Any]:
    """The policy, then the one it wraps, and so on inwards.

    >>> from swell.policies import Clamp, Fixed, RoundTo
    >>> [type(layer).__name__ for layer in layers(Clamp(RoundTo(Fixed(100), multiple=8), high=64))]
    ['Clamp', 'RoundTo', 'Fixed']
    """
    yield policy
    while isinstance(policy, WrappingPolicy):
        policy = policy.policy
        yield policy


def find(policy: object, ability: type[Ability]) -> Ability | None:
    """The outermost layer of the policy with this ability, a protocol of ``swell.core.protocols``; None without one.

    The check is slow for every step: ask once and keep the answer.

    >>> from swell.core.protocols import LayoutPolicy
    >>> from swell.policies import Clamp, Fixed, Goodput
    >>> find(Clamp(Goodput(64, max=512), high=256), LayoutPolicy)
    Goodput(base=64, max=512, ...)
    >>> find(Fixed(64), LayoutPolicy) is None
    True
    """
    return next((layer for layer in layers(policy) if isinstance(layer, ability)), None)
