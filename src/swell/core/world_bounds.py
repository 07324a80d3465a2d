"""Which worlds a largest global batch and bounds on the micro-batch allow, as AdaptDL's users know them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swell.core.counts import whole_number
from swell.core.feasibility import MicroBounds, batch_bounds
from swell.errors import ConfigError, PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldBounds:
    """What is possible on one number of replicas: the smallest and largest batch, or why there is none."""

    replicas: int
    batches: tuple[int, int] | None
    reason: str = ""


def world_bounds(
    among: Iterable[int], *, base: int, max_batch: int | None = None, micro: tuple[int, int] | None = None
) -> list[WorldBounds]:
    """For each number of replicas the batches that may be chosen there, or which of the numbers to change.

    Either bound may be left out. A largest global batch alone bounds the share of each replica, so more replicas than
    samples are ruled out. Bounds on the micro-batch alone bound the global batch by the replicas there are: without
    accumulation it reaches at most ``micro[1] * replicas``. With both, they interact: ``micro[0] * replicas`` must not
    exceed the largest batch, which rules out large worlds. With neither, the batch stays at ``base``.

    >>> for world in world_bounds([8, 10, 11], base=128, max_batch=1000, micro=(100, 500)):
    ...     print(world.replicas, world.batches)
    8 (800, 1000)
    10 (1000, 1000)
    11 None
    """
    base = whole_number(base, name="base")
    if max_batch is not None and whole_number(max_batch, name="max_batch") < base:
        raise ConfigError(f"max_batch={max_batch} is below the base batch {base}: raise it to {base} or more.")
    bounds = MicroBounds.of(min_micro=micro and micro[0], max_micro=micro and micro[1], constant_micro=False)
    found = []
    for count in among:
        replicas = whole_number(count, name="replicas")
        largest = max_batch
        if largest is None:
            largest = base if micro is None else max(base, replicas * bounds.high)
        try:
            batches = batch_bounds(
                replicas, min_batch=base, max_batch=largest, min_micro=bounds.low, max_micro=bounds.high
            )
            found.append(WorldBounds(replicas=replicas, batches=batches))
        except PlanError as error:
            found.append(WorldBounds(replicas=replicas, batches=None, reason=str(error)))
    return found
