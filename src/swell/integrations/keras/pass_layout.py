"""How a plan becomes the passes that Keras computes: whole multiples of the devices, and the rest repeated on each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swell.core.types import MicroBatch, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One forward and backward pass: ``size`` samples at ``offset`` of the step, each ``repeated`` times.

    Keras spreads a pass evenly over its devices, so its size must be a multiple of their number. The few samples that
    are left are a pass of their own, in which each sample appears once for every device: its mean gradient and its
    batch statistics are those of the samples themselves. Metrics count such a sample as often as it appears.
    """

    offset: int
    size: int
    weight: float  # part of the global batch
    repeated: int = 1


def passes_of(share: Iterable[MicroBatch], *, devices: int) -> tuple[Pass, ...]:
    """The passes of one process's share. An empty share is one pass of weight 0: every process takes part in a step.

    >>> [(one.size, one.repeated) for one in passes_of([MicroBatch(offset=0, size=14, weight=1.0)], devices=4)]
    [(12, 1), (2, 4)]
    """
    passes: list[Pass] = []
    for micro in share:
        left = micro.size % devices
        even = micro.size - left
        if even:
            passes.append(Pass(offset=micro.offset, size=even, weight=micro.weight * (even / micro.size)))
        if left:
            weight = micro.weight * (left / micro.size)
            passes.append(Pass(offset=micro.offset + even, size=left, weight=weight, repeated=devices))
    return tuple(passes) or (Pass(offset=0, size=1, weight=0.0, repeated=devices),)


def num_passes(plan: Plan, *, devices: int) -> int:
    """The passes of all processes that hold samples: the small batches by which a step is measured.

    >>> from swell.core.planning import plan
    >>> num_passes(plan(14, 2), devices=4)
    4
    """
    return sum(len(passes_of(share, devices=devices)) for share in plan.shares if share)
