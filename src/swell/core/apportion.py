"""Whole numbers in proportion to weights: how many of ``total`` things each receiver gets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction


def apportion(total: int, weights: Sequence[float], *, at_least: int = 0) -> list[int]:
    """``total`` split in proportion to ``weights`` by largest remainder, at least ``at_least`` for each receiver.

    Receiver ``r`` gets ``total * weights[r] / sum(weights)``, rounded down. The rest goes, one each, to the receivers
    with the largest fractions cut off; among equals the first one wins. A receiver that would get less than
    ``at_least`` gets ``at_least``, and the others share the rest by the same rule. All arithmetic is exact, so every
    process computes the same numbers. Needs positive finite weights and ``total >= at_least * len(weights)``.

    >>> apportion(256, [1, 1, 1])
    [86, 85, 85]
    >>> apportion(90, [2.0, 1.0])
    [60, 30]
    >>> apportion(10, [100, 1, 1], at_least=2)
    [6, 2, 2]
    """
    assert total >= at_least * len(weights)
    if all(weight == weights[0] for weight in weights):
        each, extra = divmod(total, len(weights))
        return [each + (rank < extra) for rank in range(len(weights))]
    whole = _as_integers(weights)
    parts = [at_least] * len(whole)
    sharing = list(range(len(whole)))
    while True:
        left = total - at_least * (len(whole) - len(sharing))
        shares = _largest_remainder(left, [whole[rank] for rank in sharing])
        short = {rank for rank, share in zip(sharing, shares, strict=True) if share < at_least}
        if not short:
            for rank, share in zip(sharing, shares, strict=True):
                parts[rank] = share
            return parts
        sharing = [rank for rank in sharing if rank not in short]


def _largest_remainder(total: int, weights: Sequence[int]) -> list[int]:
    all_weights = sum(weights)
    quotas = [divmod(total * weight, all_weights) for weight in weights]
    shares = [share for share, _ in quotas]
    by_fraction = sorted(range(len(weights)), key=lambda i: -quotas[i][1])  # a stable sort: the first among equals
    for i in by_fraction[: total - sum(shares)]:
        shares[i] += 1
    return shares


def _as_integers(weights: Sequence[float]) -> list[int]:
    """The same proportions in integers: a float is a fraction whose denominator is a power of two."""
    fractions = [Fraction(weight) for weight in weights]
    denominator = math.lcm(*(fraction.denominator for fraction in fractions))
    return [int(fraction * denominator) for fraction in fractions]
