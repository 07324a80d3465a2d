"""A keyed 64-bit hash: the only source of randomness in the order of samples.

It is SplitMix64 with random access (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators",
https://doi.org/10.1145/2660193.2660195). It uses integer arithmetic modulo 2**64 alone, so the numbers are the same
with every version of numpy and on every machine. Checkpoints rely on that: never change a constant here.
"""

from __future__ import annotations

import numpy as np

_MASK = 2**64 - 1
_STRIDE = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, odd: multiples of it never collide
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def derive_key(*words: int) -> int:
    """A 64-bit key from whole numbers of at most 64 bits each; it depends on the numbers and on their order.

    >>> derive_key(0, 1) == derive_key(1, 0)
    False
    """
    key = 0
    for word in words:
        key = _mix_one((key + _STRIDE + word) & _MASK)
    return key


def hash_positions(positions: np.ndarray, *, key: int) -> np.ndarray:
    """An independent uniform 64-bit number for each position, as uint64.

    Position ``i`` gets the ``i + 1``-th number of SplitMix64 seeded with ``key``.
    """
    hashed = positions.astype(np.uint64)
    hashed *= np.uint64(_STRIDE)
    hashed += np.uint64((key + _STRIDE) & _MASK)
    mix(hashed, np.empty_like(hashed))
    return hashed


def mix(numbers: np.ndarray, scratch: np.ndarray) -> None:
    """Scramble uint64 numbers in place, one to one; ``scratch`` has their shape and is overwritten."""
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        np.right_shift(numbers, np.uint64(shift), out=scratch)
        np.bitwise_xor(numbers, scratch, out=numbers)
        np.multiply(numbers, np.uint64(factor), out=numbers)
    np.right_shift(numbers, np.uint64(31), out=scratch)
    np.bitwise_xor(numbers, scratch, out=numbers)


def _mix_one(number: int) -> int:
    number = ((number ^ (number >> 30)) * _FIRST) & _MASK
    number = ((number ^ (number >> 27)) * _SECOND) & _MASK
    return number ^ (number >> 31)
