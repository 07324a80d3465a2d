"""The older trainer's bounds: which local batches are possible on how many replicas."""

from __future__ import annotations

from dataclasses import dataclass

from swell.core.counts import whole_number
from swell.core.feasibility import batch_bounds
from swell.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LocalBatch:
    """The batch that the user tuned for, with bounds on the global and the local batch; without any it is fixed.

    >>> LocalBatch(16, 80, None).range_on(8)
    (1, 10)
    >>> LocalBatch(128, 1000, (100, 400)).range_on(10)
    (100, 100)
    """

    batch_size: int
    max_batch_size: int | None = None
    bounds: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        whole_number(self.batch_size, name="batch_size")
        if self.max_batch_size is not None:
            whole_number(self.max_batch_size, name="max_batch_size")
        if self.bounds is None:
            return
        if not isinstance(self.bounds, (tuple, list)) or len(self.bounds) != 2:
            raise ConfigError(f"local_bsz_bounds is {self.bounds!r}; expected (smallest, largest). Give both.")
        low, high = (whole_number(bound, name="local_bsz_bounds") for bound in self.bounds)
        if low > high:
            raise ConfigError(f"local_bsz_bounds is {low, high}; expected (smallest, largest). Swap them.")

    @property
    def elastic(self) -> bool:
        """Whether there is a bound, which lets the batch change."""
        return self.max_batch_size is not None or self.bounds is not None

    @property
    def alone(self) -> int:
        """The batch of a single replica: what the user tuned for, but never above the maximum."""
        return self.batch_size if self.max_batch_size is None else min(self.batch_size, self.max_batch_size)

    def range_on(self, replicas: int) -> tuple[int, int]:
        """The smallest and largest local batch on ``replicas`` replicas; ``PlanError`` if there is none."""
        low, high = self.bounds or (1, None)
        if self.max_batch_size is not None:
            batch_bounds(replicas, max_batch=self.max_batch_size, min_micro=low)
            share = self.max_batch_size // replicas
            high = share if high is None else min(high, share)
        return low, high if high is not None else self.batch_size

    def near(self, global_batch: int, replicas: int) -> int:
        """The smallest local batch, equal on all replicas, that makes up a global batch; within the bounds."""
        low, high = self.range_on(replicas) if self.elastic else (1, global_batch)
        return min(max(-(-global_batch // replicas), low), high)
