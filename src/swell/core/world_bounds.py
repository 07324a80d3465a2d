"""The numbers of replicas that a largest global batch and bounds on the micro-batch allow, as in AdaptDL."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swell.core.counts import whole_number
from swell.core.feasibility import MicroBounds, batch_at_least, batch_bounds, most_micro_batches
from swell.errors import ConfigError, PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldBounds:
    """The smallest and largest batch on one number of replicas, or the reason why there is none."""

    replicas: int
    batches: tuple[int, int] | None
    reason: str = ""


def largest_batch(replicas: int, *, base: int, max_batch: int | None, micro: tuple[int, int] | None) -> int:
    """The most samples of a step on these replicas: ``max_batch``, or what ``micro`` alone allows.

    Bounds on the micro-batch alone mean the same as AdaptDL's local bounds: one micro-batch per replica, so at most
    ``micro[1] * replicas`` samples. Accumulation would remove that limit, so it is used only to reach the base batch
    (the smallest batch from there on that fits). With neither bound the batch stays at ``base``.

    >>> [largest_batch(replicas, base=64, max_batch=None, micro=(8, 32)) for replicas in (1, 2, 4)]
    [64, 64, 128]
    """
    if max_batch is not None:
        return max_batch
    if micro is None:
        return base
    return max(replicas * micro[1], batch_at_least(base, replicas, MicroBounds(*micro)))


def batches_on(
    replicas: int, *, base: int, max_batch: int | None, micro: tuple[int, int] | None, shrink: bool = False
) -> tuple[int, int]:
    """The smallest and the largest batch that may be chosen on these replicas, from ``base`` on unless ``shrink``.

    Raises ``PlanError``, with the bounds that rule it out and what to change, if there is none.
    """
    bounds = MicroBounds() if micro is None else MicroBounds(*micro)
    highest = largest_batch(replicas, base=base, max_batch=max_batch, micro=micro)
    lowest = 1 if shrink else base
    if most_micro_batches(lowest, highest, bounds) < replicas:
        raise PlanError(_ruled_out(replicas, lowest, highest, bounds))
    return batch_bounds(replicas, min_batch=lowest, max_batch=highest, min_micro=bounds.low, max_micro=bounds.high)


def world_bounds(
    among: Iterable[int],
    *,
    base: int,
    max_batch: int | None = None,
    micro: tuple[int, int] | None = None,
    shrink: bool = False,
) -> list[WorldBounds]:
    """For each number of replicas the batches that may be chosen there, or which number to change.

    Either bound may be left out. A largest global batch alone rules out more replicas than it has samples. Bounds on
    the micro-batch alone rule out no world, because the largest batch grows with it (:func:`largest_batch`). With both,
    ``micro[0] * replicas`` must not exceed the largest batch, which rules out large worlds. With neither, the batch
    stays at ``base``.

    >>> for world in world_bounds([8, 10, 11], base=128, max_batch=1000, micro=(100, 500)):
    ...     print(world.replicas, world.batches)
    8 (800, 1000)
    10 (1000, 1000)
    11 None
    """
    base = whole_number(base, name="base")
    if max_batch is not None and whole_number(max_batch, name="max_batch") < base:
        raise ConfigError(
            f"max_batch is {max_batch}; expected at least the base batch of {base}. Raise it to {base} or more."
        )
    if micro is not None:
        MicroBounds.of(min_micro=micro[0], max_micro=micro[1], constant_micro=False)
    worlds = []
    for count in among:
        replicas = whole_number(count, name="replicas")
        try:
            batches = batches_on(replicas, base=base, max_batch=max_batch, micro=micro, shrink=shrink)
            worlds.append(WorldBounds(replicas=replicas, batches=batches))
        except PlanError as error:
            worlds.append(WorldBounds(replicas=replicas, batches=None, reason=str(error)))
    return worlds


def _ruled_out(replicas: int, lowest: int, highest: int, bounds: MicroBounds) -> str:
    """Why there is no batch, without names of arguments: callers have other names for them."""
    world = f"{replicas} replica{'s' if replicas > 1 else ''}"
    least = batch_at_least(lowest, replicas, bounds)
    remedies = [f"Raise the largest batch to {least} or more"]
    if highest < replicas * bounds.low:
        why = f"at least {bounds.low} on each make {least}"
        if highest >= replicas:
            remedies.append(f"lower the smallest micro-batch to {highest // replicas} or less")
    else:
        why = f"from {lowest} on, the first that can be made of {bounds} on {world} is {least}"
        remedies.append("widen the bounds on micro-batches")
    most = most_micro_batches(lowest, highest, bounds)
    if most:
        remedies.append(f"run on at most {most} replica{'s' if most > 1 else ''}")
    return f"a largest batch of {highest} samples rules {world} out: {why}. {', or '.join(remedies)}."
