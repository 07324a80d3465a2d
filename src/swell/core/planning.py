"""How one optimizer step is laid out on the replicas.

Samples are dealt out in rounds: in round ``i`` each replica that has an ``i``-th micro-batch takes the next
consecutive samples, in rank order. With micro-batches of one constant size ``m``, rank ``r`` therefore starts round
``i`` at ``(i * replicas + r) * m``, in every round in which all replicas take part. A larger batch adds rounds at the
end and moves no sample of the rounds before, so samples that were already fetched stay with their replica.

A micro-batch of ``size`` samples has weight ``size / global_batch``. The mean gradients of the micro-batches, summed
with these weights, are the mean gradient of the whole batch, whatever the sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from numbers import Real

from swell.core.apportion import apportion
from swell.core.counts import whole_number
from swell.core.feasibility import MicroBounds, batch_bounds, feasible_replicas, nearest_batches, require_fit
from swell.core.types import MicroBatch, Plan
from swell.errors import ConfigError

__all__ = ["batch_bounds", "feasible_replicas", "nearest_batches", "plan", "plan_remainder", "with_equal_rounds"]

_SIZE = Callable[[int, int, int], int]  # (rank, round, how many micro-batches were dealt before) -> samples


def plan(
    global_batch: int,
    replicas: int,
    *,
    max_micro: int | None = None,
    min_micro: int | None = None,
    constant_micro: bool = False,
    capacity: Sequence[float] | None = None,
    min_accumulation: int = 1,
) -> Plan:
    """Shares, micro-batches and weights for one step of exactly ``global_batch`` samples.

    Each replica's share is proportional to its ``capacity`` (relative speed, equal by default), in whole samples and at
    least one micro-batch. It is cut into as few micro-batches as ``max_micro`` allows, their sizes at most 1 apart. If
    such shares cannot be cut within the bounds, micro-batches of sizes at most 1 apart are dealt out in proportion
    instead, and shares may differ by a whole micro-batch.

    ``constant_micro`` gives every micro-batch of the step the same size, the largest allowed that divides the batch:
    for compiled models and batch norm. Give ``min_micro`` too, because a prime batch is cut into single samples without
    it. ``min_accumulation`` is the least number of micro-batches on each replica, as far as sizes allow.

    Raises ``PlanError``, with the numbers that would work, if there is no layout, and ``ConfigError`` for arguments
    that can never work. The same arguments return the same plan object.

    >>> [plan(256, replicas, max_micro=64).accumulation for replicas in (1, 2, 4)]
    [4, 2, 1]
    >>> uneven = plan(256, 3, max_micro=64)
    >>> uneven.share_sizes(), uneven.accumulation, uneven.micro_batch
    ((86, 85, 85), 2, 43)
    >>> plan(90, 2, capacity=[2.0, 1.0]).share_sizes()
    (60, 30)
    """
    replicas = whole_number(replicas, name="replicas")
    return _plan(
        whole_number(global_batch, name="global_batch"),
        replicas,
        MicroBounds.of(min_micro=min_micro, max_micro=max_micro, constant_micro=constant_micro),
        _capacity(capacity, replicas=replicas),
        whole_number(min_accumulation, name="min_accumulation"),
    )


def plan_remainder(
    count: int,
    replicas: int,
    *,
    max_micro: int | None = None,
    min_micro: int | None = None,
    constant_micro: bool = False,
    capacity: Sequence[float] | None = None,
    min_accumulation: int = 1,
) -> Plan:
    """The layout of an epoch's last, short step: like ``plan``, for any number of samples.

    There is always a layout. ``min_micro`` is broken if it must be, and replicas for which no sample is left get an
    empty share: they compute nothing and still take part in the step. With ``constant_micro`` the samples fill as many
    micro-batches of ``max_micro`` samples as they can, and one more holds the rest, whatever ``min_accumulation`` is.
    Give the running plan's ``micro_batch`` as ``max_micro``: then only the rest has a new shape.

    >>> plan_remainder(2, 4).share_sizes()
    (1, 1, 0, 0)
    >>> [[micro.size for micro in share] for share in plan_remainder(70, 2, max_micro=32, constant_micro=True).shares]
    [[32, 6], [32]]
    """
    replicas = whole_number(replicas, name="replicas")
    return _plan_remainder(
        whole_number(count, name="count"),
        replicas,
        MicroBounds.of(min_micro=min_micro, max_micro=max_micro, constant_micro=constant_micro),
        _capacity(capacity, replicas=replicas),
        whole_number(min_accumulation, name="min_accumulation"),
    )


def with_equal_rounds(layout: Plan) -> Plan:
    """The same step with equally many micro-batches on every replica, for models that communicate in every pass.

    A replica with fewer of them cuts its largest in two. If it has too few samples, it computes the step's first sample
    with weight 0.

    >>> uneven = plan(6, 2, capacity=[2, 1], max_micro=2)
    >>> [[(micro.offset, micro.size) for micro in share] for share in with_equal_rounds(uneven).shares]
    [[(0, 2), (4, 2)], [(2, 1), (3, 1)]]
    >>> [[m.weight for m in share] for share in with_equal_rounds(plan_remainder(1, 2)).shares]
    [[1.0], [0.0]]
    """
    rounds = layout.accumulation
    if all(len(share) == rounds for share in layout.shares):
        return layout
    shares = []
    for share in layout.shares:
        pieces = list(share)
        while len(pieces) < rounds:
            largest = max(range(len(pieces)), key=lambda i: pieces[i].size, default=None)
            if largest is None or pieces[largest].size < 2:
                pieces.append(MicroBatch(offset=0, size=1, weight=0.0))
                continue
            pieces[largest : largest + 1] = _cut(pieces[largest])
        shares.append(tuple(pieces))
    return Plan(global_batch=layout.global_batch, shares=tuple(shares))


def halved(layout: Plan) -> Plan:
    """The same step with every micro-batch cut in two: each replica keeps its samples, and has two gradients of them.

    A micro-batch of a single sample stays as it is.

    >>> [[(micro.offset, micro.size) for micro in share] for share in halved(plan(7, 2)).shares]
    [[(0, 2), (2, 2)], [(4, 2), (6, 1)]]
    """
    shares = [tuple(piece for micro in share for piece in _cut(micro)) for share in layout.shares]
    return Plan(global_batch=layout.global_batch, shares=tuple(shares))


def _cut(whole: MicroBatch) -> list[MicroBatch]:
    """A micro-batch in two, the first not smaller than the second; a single sample cannot be cut."""
    if whole.size < 2:
        return [whole]
    first, weight = -(-whole.size // 2), whole.weight / whole.size
    return [
        MicroBatch(offset=whole.offset, size=first, weight=first * weight),
        MicroBatch(offset=whole.offset + first, size=whole.size - first, weight=(whole.size - first) * weight),
    ]


# The caches are small because a plan of a million samples in micro-batches of 32 holds about 5 MB.
@lru_cache(maxsize=32)
def _plan(
    global_batch: int, replicas: int, bounds: MicroBounds, capacity: tuple[float, ...], min_accumulation: int
) -> Plan:
    require_fit(global_batch, replicas, bounds)
    if bounds.constant:
        size = _constant_size(global_batch, replicas, bounds, min_accumulation)
        number = global_batch // size
        counts = apportion(number, capacity, at_least=min(min_accumulation, number // replicas))
        return _deal(global_batch, counts, lambda rank, turn, dealt: size)
    shares = apportion(global_batch, capacity, at_least=bounds.low)
    counts = [_cuts(share, bounds, min_accumulation) for share in shares]
    if all(bounds.low * cuts <= share for share, cuts in zip(shares, counts, strict=True)):
        return _deal(global_batch, counts, _even_cuts(shares, counts))
    number = min(max(replicas * min_accumulation, -(-global_batch // bounds.high)), global_batch // bounds.low)
    size, larger = divmod(global_batch, number)
    counts = apportion(number, capacity, at_least=min(min_accumulation, number // replicas))
    return _deal(global_batch, counts, lambda rank, turn, dealt: size + (dealt < larger))


@lru_cache(maxsize=32)
def _plan_remainder(
    count: int, replicas: int, bounds: MicroBounds, capacity: tuple[float, ...], min_accumulation: int
) -> Plan:
    if bounds.constant:
        size = bounds.high if bounds.bounded else -(-count // replicas)
        counts = apportion(-(-count // size), capacity)
        return _deal(count, counts, lambda rank, turn, dealt: min(size, count - dealt * size))
    shares = apportion(count, capacity, at_least=min(bounds.low, count // replicas))
    counts = [_cuts(share, bounds, min_accumulation) for share in shares]
    return _deal(count, counts, _even_cuts(shares, counts))


def _cuts(share: int, bounds: MicroBounds, min_accumulation: int) -> int:
    """Into how many micro-batches a share is cut; breaks the lower bound if the upper one requires it."""
    return max(-(-share // bounds.high), min(min_accumulation, share // bounds.low))


def _even_cuts(shares: Sequence[int], counts: Sequence[int]) -> _SIZE:
    cuts = [divmod(share, count) if count else (0, 0) for share, count in zip(shares, counts, strict=True)]
    return lambda rank, turn, dealt: cuts[rank][0] + (turn < cuts[rank][1])


def _constant_size(global_batch: int, replicas: int, bounds: MicroBounds, min_accumulation: int) -> int:
    """The largest allowed divisor that gives each replica ``min_accumulation`` micro-batches, or comes nearest."""
    divisors = set()
    for small in range(1, math.isqrt(global_batch) + 1):
        if global_batch % small == 0:
            divisors |= {small, global_batch // small}
    allowed = [size for size in divisors if bounds.low <= size <= min(bounds.high, global_batch // replicas)]
    return max(allowed, key=lambda size: (min(global_batch // size // replicas, min_accumulation), size))


def _deal(global_batch: int, counts: Sequence[int], size_of: _SIZE) -> Plan:
    """Deal the samples out in rounds; ``counts`` says how many micro-batches each replica gets."""
    shares: list[list[MicroBatch]] = [[] for _ in counts]
    active = list(range(len(counts)))
    offset = dealt = 0
    for turn in range(max(counts)):
        active = [rank for rank in active if counts[rank] > turn]
        for rank in active:
            size = size_of(rank, turn, dealt)
            shares[rank].append(MicroBatch(offset=offset, size=size, weight=size / global_batch))
            offset, dealt = offset + size, dealt + 1
    assert offset == global_batch
    return Plan(global_batch=global_batch, shares=tuple(map(tuple, shares)))


def _capacity(capacity: Sequence[float] | None, *, replicas: int) -> tuple[float, ...]:
    if capacity is None:
        return (1.0,) * replicas
    speeds = tuple(capacity)
    if len(speeds) != replicas:
        raise ConfigError(
            f"capacity has {len(speeds)} numbers; expected {replicas}, one per replica. Give all, in rank order."
        )
    for rank, speed in enumerate(speeds):
        if isinstance(speed, bool) or not isinstance(speed, Real) or not 0 < speed < math.inf:
            raise ConfigError(
                f"capacity[{rank}] is {speed!r}; expected a finite number above 0. Give relative speeds, such as 2.0 "
                "for a replica twice as fast as one with 1.0."
            )
    return tuple(float(speed) for speed in speeds)
