"""The policy of a loader with ``autoscale_batch_size``, and its bounds."""

from __future__ import annotations

from swell.core.counts import whole_number
from swell.errors import ConfigError
from swell.policies import Goodput, OnePass

Bounds = tuple[int | None, int | None]


def autoscale(base: int, *, max_batch: int, bounds: tuple[int, int], accumulation: bool) -> Goodput | OnePass:
    """The policy of a loader with ``autoscale_batch_size``: both bounds are hard.

    Without accumulation a single replica keeps the base batch, as in the original.
    """
    policy = Goodput(base, max=max_batch, micro=bounds, slack=0.08, prefer="steps", price=None)
    return policy if accumulation else OnePass(policy)


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
