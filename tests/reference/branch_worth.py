"""What a larger step is worth, by walking along the base branch; and the critical batch, by trying each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log


def walked_worth(base: Sequence[tuple[int, float]], steps: int, loss: float, *, strides: int = 20_000) -> float:
    """Walk from the base branch's start to its end in small strides until its loss is as low, over the large steps."""
    (first, _), (last, _) = base[0], base[-1]
    for stride in range(strides + 1):
        place = first + (last - first) * stride / strides
        for (left, high), (right, low) in pairwise(base):
            if left <= place <= right:
                here = high + (low - high) * (place - left) / (right - left)
                if here <= loss:
                    return place / steps
                break
    return last / steps


def tried_critical_batch(worth_of: Mapping[int, float], *, base: int) -> float:
    """The whole number of samples whose law misses the worths by the least factor, in squares of logarithms."""

    def off(phi: int) -> float:
        return sum(log(batch / base * (phi + base) / (phi + batch) / worth) ** 2 for batch, worth in worth_of.items())

    return min(range(1, 4000), key=off)
