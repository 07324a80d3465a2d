"""Layouts of a step by trying everything out and by dealing one sample at a time."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache

UNBOUNDED = 10**6


def divide(total: int, weights: Sequence[float], *, at_least: int) -> list[int]:
    """Largest remainder, with those at the minimum taken out until none is below it."""
    fixed: set[int] = set()
    while True:
        free = [rank for rank in range(len(weights)) if rank not in fixed]
        left = total - at_least * len(fixed)
        weight = sum(Fraction(weights[rank]) for rank in free)
        quota = {rank: left * Fraction(weights[rank]) / weight for rank in free}
        parts = {rank: int(quota[rank]) for rank in free}
        while sum(parts.values()) < left:
            neediest = max(free, key=lambda rank: (quota[rank] - parts[rank], -rank))
            parts[neediest] += 1
        below = {rank for rank in free if parts[rank] < at_least}
        if not below:
            return [parts.get(rank, at_least) for rank in range(len(weights))]
        fixed |= below


def piles(total: int, number: int) -> list[int]:
    """``total`` samples dealt one by one on ``number`` piles."""
    sizes = [0] * number
    for sample in range(total):
        sizes[sample % number] += 1
    return sizes


@cache
def all_piles(total: int) -> list[list[int]]:
    """The most even way to cut ``total`` samples into 1, 2, ... and ``total`` piles."""
    return [piles(total, number) for number in range(1, total + 1)]


def fits(batch: int, replicas: int, *, low: int = 1, high: int = UNBOUNDED, constant: bool = False) -> bool:
    """Whether there are micro-batches within the bounds, at least one for each replica."""
    return any(
        low <= min(sizes) and max(sizes) <= high and (not constant or min(sizes) == max(sizes))
        for sizes in all_piles(batch)[replicas - 1 :]
    )


def deal(sizes: Sequence[Sequence[int]]) -> list[list[list[int]]]:
    """Offsets of every sample, by replica and micro-batch: a round goes once round the replicas that are not done."""
    dealt: list[list[list[int]]] = [[] for _ in sizes]
    sample = turn = 0
    while any(len(micros) < len(want) for micros, want in zip(dealt, sizes, strict=True)):
        for micros, want in zip(dealt, sizes, strict=True):
            if turn < len(want):
                micros.append(list(range(sample, sample + want[turn])))
                sample += want[turn]
        turn += 1
    return dealt


def even_layout(
    batch: int, weights: Sequence[float], *, low: int, high: int, min_accumulation: int
) -> list[list[int]] | None:
    """Sizes by replica for shares in proportion; ``None`` where the bounds leave no way to cut one of these shares."""
    sizes = []
    for share in divide(batch, weights, at_least=low):
        allowed = [number for number in range(1, share + 1) if max(piles(share, number)) <= high]
        kept = [number for number in allowed if min(piles(share, number)) >= low]
        if not kept:
            return None
        wanted = [number for number in kept if number >= min_accumulation]
        sizes.append(piles(share, min(wanted) if wanted else max(kept)))
    return sizes
