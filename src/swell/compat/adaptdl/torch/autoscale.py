"""How AdaptDL's bounds choose a batch: the goodput policy within them."""

from __future__ import annotations

from swell.core.counts import whole_number
from swell.errors import ConfigError
from swell.policies import Goodput, OnePass

Bounds = tuple[int | None, int | None]


def autoscale(base: int, *, max_batch: int, bounds: tuple[int, int], accumulation: bool) -> Goodput | OnePass:
    """The policy of a loader with ``autoscale_batch_size``: both bounds are hard.

    Without accumulation a single replica keeps the base batch, as in the original.
    """
    policy = Goodput(base, max=max_batch, micro=bounds)
    return policy if accumulation else OnePass(policy)


def checked(base: int, max_batch_size: int, local_bsz_bounds: Bounds | None) -> tuple[int, Bounds | None]:
    """The bounds as given, or ``ConfigError`` where the batch the user tuned for does not lie within them."""
    most = whole_number(max_batch_size, name="max_batch_size")
    if most < base:
        raise ConfigError(
            f"max_batch_size={most} is below batch_size={base}. Raise it to {base} or more, or lower batch_size."
        )
    if local_bsz_bounds is None:
        return most, None
    if not isinstance(local_bsz_bounds, (tuple, list)) or len(local_bsz_bounds) != 2:
        raise ConfigError(f"local_bsz_bounds={local_bsz_bounds!r}; expected (smallest, largest), each may be None.")
    low, high = (None if bound is None else whole_number(bound, name="local_bsz_bounds") for bound in local_bsz_bounds)
    if (low is not None and low > base) or (high is not None and high < base):
        raise ConfigError(
            f"local_bsz_bounds={low, high} leave out batch_size={base}, which one replica must be able to compute by "
            f"itself. Expected smallest <= {base} <= largest."
        )
    return most, (low, high)
