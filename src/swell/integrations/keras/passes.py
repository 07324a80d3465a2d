"""A share of a plan as the passes Keras computes: whole multiples of the devices, and what is left repeated on each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swell.core.types import MicroBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One forward and backward pass: ``size`` samples at ``offset`` of the step, each ``repeated`` so often.

    Keras spreads a pass evenly over its devices, so it must divide by their number. The few samples that do not are a
    pass of their own, in which each sample appears once for every device: its mean gradient (and batch statistics) are
    those of the samples themselves. Its metrics count a sample as often as it appears.
    """

    offset: int
    size: int
    weight: float  # part of the global batch
    repeated: int = 1


def passes(share: Iterable[MicroBatch], *, devices: int) -> tuple[Pass, ...]:
    """The passes of one process's share; one of weight 0 where it is empty, since every process takes part in a step.

    >>> [(p.size, p.repeated) for p in passes([MicroBatch(offset=0, size=14, weight=1.0)], devices=4)]
    [(12, 1), (2, 4)]
    """
    found: list[Pass] = []
    for micro in share:
        left = micro.size % devices
        even = micro.size - left
        if even:
            found.append(Pass(offset=micro.offset, size=even, weight=micro.weight * (even / micro.size)))
        if left:
            weight = micro.weight * (left / micro.size)
            found.append(Pass(offset=micro.offset + even, size=left, weight=weight, repeated=devices))
    return tuple(found) or (Pass(offset=0, size=1, weight=0.0, repeated=devices),)
