"""The same global batch in every step."""

from __future__ import annotations

from dataclasses import dataclass

from swell.core.types import Observation
from swell.errors import ConfigError
from swell.policies.arguments import assign, number, samples


@dataclass(frozen=True, slots=True, init=False)
class Fixed:
    """``size`` samples in every step, on any number of replicas.

    With a ``tolerance`` t the batch may move within ``size·(1 ± t)``, so that every replica gets the same share: to the
    multiple of ``replicas·micro`` nearest to ``size`` that lies in the band, else to the nearest multiple of
    ``replicas``, else it stays exact and shares are uneven (which is right too, only less even). Replicas of unequal
    capacity have uneven shares anyway, so for them it stays exact.

    ``base`` is the batch the learning rate was tuned for, ``size`` itself unless you say otherwise.

    >>> from swell.policies import Fixed
    >>> Fixed(256)
    Fixed(size=256, base=256, tolerance=0.0, micro=1)
    """

    size: int
    base: int
    tolerance: float
    micro: int

    def __init__(self, size: int, *, base: int | None = None, tolerance: float = 0.0, micro: int = 1) -> None:
        size = samples(size, "size")
        assign(
            self,
            size=size,
            base=samples(size if base is None else base, "base"),
            tolerance=number(tolerance, "tolerance", least=0, example=0.05),
            micro=samples(micro, "micro"),
        )
        if self.tolerance >= 1:
            raise ConfigError(
                f"tolerance is {tolerance!r}; expected a part of the size, at least 0 and below 1. "
                "Give 0.1 to let the batch move by ten percent."
            )

    def batch(self, seen: Observation) -> int:
        if not self.tolerance or len(set(seen.capacity)) > 1:
            return self.size
        reach = self.size * self.tolerance + 1e-9  # 0.29 * 100 is a hair below 29
        for multiple in (seen.replicas * self.micro, seen.replicas):
            nearest = max(1, (2 * self.size + multiple) // (2 * multiple)) * multiple  # halves go up
            if abs(nearest - self.size) <= reach:
                return nearest
        return self.size
