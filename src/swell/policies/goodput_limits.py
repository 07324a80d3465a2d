"""Which batches and micro-batches the goodput policy may choose: in every world, and in one step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from swell.core.counts import as_whole
from swell.core.feasibility import MicroBounds, batch_at_least, batch_at_most
from swell.core.types import Observation
from swell.core.world_bounds import WorldBounds, batches_on, largest_batch, world_bounds
from swell.errors import ConfigError

Sizes = tuple[int, int]  # the smallest and the largest micro-batch, in samples
_GROWTH_AUTO, _GROWTH = 2, 4  # how many times the largest measured micro-batch the next one may be


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a ``Goodput``, by the names of its arguments."""

    base: int
    max: int | None
    micro: Sizes | Literal["auto"] | None
    shrink: bool

    @property
    def sizes(self) -> Sizes | None:
        """The bounds on the micro-batch, if they were given as sizes."""
        return self.micro if isinstance(self.micro, tuple) else None

    def require_some(self) -> None:
        """Raise ``ConfigError`` unless there is a bound, and a batch within the bounds on some number of replicas."""
        if self.max is None and self.sizes is None:
            raise ConfigError(
                f"max is None and micro is {self.micro!r}; expected a limit to the batch. Give the largest global "
                f"batch, for example max={16 * self.base}, or bounds for one replica, micro=(16, 256)."
            )
        if self.max is not None and self.base > self.max:
            raise ConfigError(
                f"max is {self.max} and base is {self.base}; expected bounds that do not cross. "
                f"Raise max to {self.base} or more."
            )
        alone = self.worlds([1])[0]  # a batch that fits on more replicas fits on one
        if alone.batches is None:
            raise ConfigError(
                f"base is {self.base}, max is {self.max} and micro is {self.micro}; expected bounds within which some "
                f"number of replicas has a batch. On one replica {alone.reason}"
            )

    def worlds(self, among: Iterable[int]) -> list[WorldBounds]:
        """For each number of replicas the smallest and the largest batch there, or the bounds that rule it out."""
        return world_bounds(among, base=self.base, max_batch=self.max, micro=self.sizes, shrink=self.shrink)

    def sizes_now(self, seen: Observation) -> Sizes:
        """The smallest and the largest micro-batch that may be used in the next step."""
        low, high = self.sizes or (1, self.max or self.base)
        if seen.profile and low != high:
            largest = max(point.micro_batch for point in seen.profile)
            high = min(high, max(low, largest * (_GROWTH_AUTO if self.micro == "auto" else _GROWTH)))
        if seen.max_micro is not None:  # memory is a harder limit than the user's lower bound
            high = min(high, max(seen.max_micro, 1))
        return min(low, high), high

    def largest(self, replicas: int, sizes: Sizes, seen: Observation) -> int:
        """The largest batch on these replicas: no step has more samples than an epoch."""
        return max(self.base, seen.within_epoch(self._limit(replicas, sizes)))

    def nearest(self, batch: int, replicas: int, sizes: Sizes) -> int:
        """The batch, or the nearest to it that fits on these replicas."""
        limit = self._limit(replicas, sizes)
        first, last = batches_on(replicas, base=self.base, max_batch=limit, micro=sizes, shrink=self.shrink)
        target, bounds = min(max(batch, first), last), MicroBounds(*sizes)
        below = batch_at_most(target, replicas, bounds)
        return below if below is not None and below >= first else batch_at_least(target, replicas, bounds)

    def _limit(self, replicas: int, sizes: Sizes) -> int:
        """The largest batch within the user's bounds, or within those of this step if memory made them narrower."""
        bounds = (self.sizes, sizes)
        return max(largest_batch(replicas, base=self.base, max_batch=self.max, micro=each) for each in bounds)


def as_sizes(micro: object) -> Sizes | Literal["auto"] | None:
    """The argument ``micro``, with one size as a pair; ``ConfigError`` for anything else."""
    if micro is None or (isinstance(micro, str) and micro == "auto"):
        return micro  # pyright: ignore[reportReturnType]
    pair = (micro, micro) if as_whole(micro) is not None else micro
    sizes = [as_whole(size) for size in pair] if isinstance(pair, (tuple, list)) else []
    if len(sizes) == 2 and sizes[0] is not None and sizes[1] is not None and 1 <= sizes[0] <= sizes[1]:
        return sizes[0], sizes[1]
    raise ConfigError(
        f"micro is {micro!r}; expected bounds (low, high) in samples with 1 <= low <= high, one size, 'auto' or None. "
        "Give for example micro=(16, 256)."
    )
