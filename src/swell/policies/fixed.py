"""The same global batch in every step."""

from __future__ import annotations

from dataclasses import dataclass

from swell.core.counts import whole_number
from swell.core.types import Observation
from swell.errors import ConfigError
from swell.policies.arguments import assign, number


@dataclass(frozen=True, slots=True, init=False)
class Fixed:
    """``size`` samples in every step, on any number of replicas.

    With a ``tolerance`` t the batch may move within ``size·(1 ± t)`` to give every replica the same share: to the
    multiple of ``replicas·micro`` nearest to ``size`` if it is in that range, otherwise to the nearest multiple of
    ``replicas``, otherwise it stays exact and shares are uneven. Replicas of unequal capacity have uneven shares
    anyway, so for them it stays exact.

    ``base`` is the batch the learning rate was tuned for, by default ``size``.

    >>> from swell.policies import Fixed
    >>> Fixed(256)
    Fixed(size=256, base=256, tolerance=0.0, micro=1)
    """

    size: int
    base: int
    tolerance: float
    micro: int

    def __init__(self, size: int, *, base: int | None = None, tolerance: float = 0.0, micro: int = 1) -> None:
        size = whole_number(size, name="size")
        assign(
            self,
            size=size,
            base=whole_number(size if base is None else base, name="base"),
            tolerance=number(tolerance, name="tolerance", at_least=0, example=0.05),
            micro=whole_number(micro, name="micro"),
        )
        if self.tolerance >= 1:
            raise ConfigError(
                f"tolerance is {tolerance!r}; expected a part of the size, 0 or more and below 1. "
                "Give 0.1 to let the batch move by ten percent."
            )

    def batch(self, seen: Observation) -> int:
        if not self.tolerance or len(set(seen.capacity)) > 1:
            return self.size
        reach = self.size * self.tolerance + 1e-9  # because 0.29 * 100 is slightly below 29
        for multiple in (seen.replicas * self.micro, seen.replicas):
            nearest = max(1, (2 * self.size + multiple) // (2 * multiple)) * multiple  # halves go up
            if abs(nearest - self.size) <= reach:
                return nearest
        return self.size
