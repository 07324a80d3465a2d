"""How AdaptDL's bounds choose a batch: the goodput policy within them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from swell.core.counts import whole_number
from swell.core.types import Layout, Observation
from swell.errors import ConfigError
from swell.policies import Goodput

Bounds = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class Autoscale:
    """``Goodput`` within a maximum batch and local bounds, both hard; with accumulation, or in one pass a replica.

    Without accumulation a single replica keeps the base batch, as in the original.
    """

    goodput: Goodput
    accumulation: bool

    @property
    def base(self) -> int:
        """The batch the learning rate was tuned for."""
        return self.goodput.base

    def batch(self, seen: Observation) -> int:
        """The next global batch."""
        return self.layout(seen).global_batch

    def layout(self, seen: Observation) -> Layout:
        """The next global batch and its largest micro-batch."""
        if self.accumulation:
            return self.goodput.layout(seen)
        if seen.replicas == 1:
            return Layout(global_batch=self.base, micro_batch=self.base)
        assert isinstance(self.goodput.micro, tuple) and self.goodput.max is not None
        most = min(self.goodput.max, seen.replicas * self.goodput.micro[1])
        chosen = replace(self.goodput, max=most).layout(seen).global_batch
        return Layout(global_batch=chosen, micro_batch=-(-chosen // seen.replicas))


def autoscale(base: int, *, max_batch: int, bounds: tuple[int, int], accumulation: bool) -> Autoscale:
    """The policy of a loader with ``autoscale_batch_size``."""
    return Autoscale(Goodput(base, max=max_batch, micro=bounds), accumulation)


def valid_bounds(base: int, max_batch_size: int, local_bsz_bounds: Bounds | None) -> tuple[int, Bounds | None]:
    """Both bounds, or ``ConfigError`` if they exclude the batch that the user tuned for."""
    max_batch = whole_number(max_batch_size, name="max_batch_size")
    if max_batch < base:
        raise ConfigError(
            f"max_batch_size is {max_batch}; expected batch_size, {base}, or more. Raise it, or lower batch_size."
        )
    if local_bsz_bounds is None:
        return max_batch, None
    if not isinstance(local_bsz_bounds, (tuple, list)) or len(local_bsz_bounds) != 2:
        raise ConfigError(
            f"local_bsz_bounds is {local_bsz_bounds!r}; expected (smallest, largest). Give both, or None for no bound."
        )
    low, high = (None if bound is None else whole_number(bound, name="local_bsz_bounds") for bound in local_bsz_bounds)
    if (low is not None and low > base) or (high is not None and high < base):
        raise ConfigError(
            f"local_bsz_bounds is {low, high}; expected smallest <= {base} <= largest, because one replica must be "
            f"able to compute batch_size={base} by itself. Widen the bounds, or change batch_size."
        )
    return max_batch, (low, high)
