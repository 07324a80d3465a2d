"""Orders as plain lists, drawn one sample at a time."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from tests.reference.permutation import key_of, permuted, splitmix64


def shuffled(n: int, *, seed: int, epoch: int) -> list[int]:
    return [permuted(position, n=n, key=key_of(1, seed, epoch)) for position in range(n)]


def weighted(weights: Sequence[float], *, seed: int, epoch: int, num_samples: int) -> list[int]:
    """Walk along the weights, without rounding, until the uniform number is passed."""
    total = sum(map(Fraction, weights))
    draws = []
    for number in splitmix64(key_of(2, seed, epoch), num_samples):
        left = Fraction(number >> 11, 2**53) * total
        for index, weight in enumerate(weights):
            left -= Fraction(weight)
            if left < 0:
                draws.append(index)
                break
    return draws
