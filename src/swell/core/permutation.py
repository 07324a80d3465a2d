r"""A keyed pseudo-random permutation of ``[0, n)`` with random access: no list, no start-up, any ``n``.

Up to 1,024 numbers are sorted by a keyed hash, so each of the ``n!`` orders is equally likely. More numbers go through
a generalised Feistel network: each is split into ``x = left * b + right`` with ``b`` a power of two near ``sqrt(n)``
and ``a = ceil(n / b)``, and rounds alternate between

.. math:: right \leftarrow (right + F_i(left)) \bmod b, \qquad left \leftarrow (left + F_i(right)) \bmod a

with keyed hashes ``F_i``. That permutes ``[0, a * b)``. A number that lands at ``n`` or above goes through again until
it lands below ("cycle walking"). Fewer than one number in ``a`` needs it.

Reference: Black and Rogaway 2002, "Ciphers with arbitrary finite domains", sections 3 (sorting), 4 (cycle walking) and
5 (generalised Feistel), https://eprint.iacr.org/2001/012. It shuffles samples and keeps no secret.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from swell.core.counts import whole_number
from swell.core.hashing import derive_key, hash_positions, mix
from swell.errors import ConfigError

LARGEST = 2**62
"""The largest ``n``: the halves of a number must stay below 2**32 for the hash to be scaled without division."""

_SORTED_BELOW = 1025
_HALF = np.uint64(32)  # bits of a hash that are scaled
_BLOCK = 1 << 14  # numbers at a time: the four work arrays stay in a core's second-level cache
_TABLE_BITS = 12  # up to this length a half has a table of its hashes; those of all rounds then take 256 kB


def permute(positions: np.ndarray, *, n: int, key: int) -> np.ndarray:
    """Where a shuffle of ``range(n)`` puts each of ``positions``: int64, of the same shape.

    A function of its arguments alone, the same on every machine and in every version. ``key`` has at most 64 bits.
    Needs about a megabyte besides the result, for every ``n``. Raises ``ConfigError`` if ``n`` is not in
    [1, 2**62], a position is not a whole number in [0, n), or the key does not fit.

    >>> permute(np.arange(5), n=5, key=7).tolist()
    [2, 1, 4, 3, 0]
    >>> permute(np.array([0, 999_999_999]), n=1_000_000_000, key=7).tolist()
    [476475650, 227549484]
    """
    n = whole_number(n, name="n", at_most=LARGEST)
    key = whole_number(key, name="key", at_least=0, at_most=2**64 - 1)
    positions = np.asarray(positions)
    if positions.size == 0:
        return np.empty(positions.shape, dtype=np.int64)
    if positions.dtype.kind not in "iu":
        raise ConfigError(f"positions have type {positions.dtype}; expected whole numbers. Give an array of integers.")
    if positions.min() < 0 or positions.max() >= n:
        raise ConfigError(
            f"positions are {positions.min()} to {positions.max()}; expected 0 to {n - 1}. Remove others, or raise n."
        )
    if n < _SORTED_BELOW:
        hashes = hash_positions(np.arange(n), key=derive_key(key, n))
        return np.argsort(hashes, kind="stable").astype(np.int64)[positions]
    network = _network(n, key)
    flat = positions.astype(np.uint64).reshape(-1)  # a copy, permuted in place
    for start in range(0, flat.size, _BLOCK):
        network.walk(flat[start : start + _BLOCK])
    return flat.astype(np.int64).reshape(positions.shape)


class _Network:
    """The Feistel network of one ``(n, key)``."""

    def __init__(self, n: int, key: int) -> None:
        bits = (n - 1).bit_length()
        right_bits = (bits + 1) // 2
        # A round mixes about bits / 2 bits, so short numbers need more rounds. A network of large halves cannot be
        # distinguished from chance after four; eight are a margin.
        rounds = max(8, -(-64 // (bits // 2)))
        self.n = np.uint64(n)
        self.keys = [np.uint64(derive_key(key, n, i)) for i in range(rounds)]
        self.right_bits = np.uint64(right_bits)
        self.right_mask = np.uint64((1 << right_bits) - 1)
        self.right_drop = np.uint64(64 - right_bits)
        self.left_size = np.uint64(-(-n >> right_bits))
        self.tables: list[np.ndarray] | None = None  # of each round's function, for every half
        # Numbers that are hashed first: to fill tables takes as long, and reading them is three times as quick.
        self.hashed_first = float(1 << right_bits) if right_bits <= _TABLE_BITS else math.inf

    def walk(self, numbers: np.ndarray) -> None:
        """Permute numbers below ``n`` in place, staying below ``n``."""
        self.encrypt(numbers)
        outside = np.flatnonzero(numbers >= self.n)
        while outside.size:
            again = numbers[outside]
            self.encrypt(again)
            numbers[outside] = again
            outside = outside[again >= self.n]

    def encrypt(self, numbers: np.ndarray) -> None:
        """Permute numbers below ``a * b`` in place."""
        left, right = numbers >> self.right_bits, numbers & self.right_mask
        hashed, scratch = np.empty_like(left), np.empty_like(left)
        tables = self._tables_for(numbers.size)
        for i in range(len(self.keys)):
            half = right if i % 2 else left
            if tables is None:
                self.hash(half, i, out=hashed, scratch=scratch)
            else:
                np.take(tables[i], half.view(np.int64), out=hashed, mode="clip")  # halves are in range: none is clipped
            if i % 2:  # left += F(right) mod a
                np.add(left, hashed, out=left)
                np.subtract(left, self.left_size, out=scratch)
                np.minimum(left, scratch, out=left)  # below a the difference wraps round to a huge number
            else:  # right += F(left) mod b, a power of two
                np.add(right, hashed, out=right)
                np.bitwise_and(right, self.right_mask, out=right)
        np.left_shift(left, self.right_bits, out=numbers)
        np.bitwise_or(numbers, right, out=numbers)

    def hash(self, half: np.ndarray, i: int, *, out: np.ndarray, scratch: np.ndarray) -> None:
        """The function of round ``i``: numbers below ``a`` in every second round, below ``b`` in the others."""
        np.add(half, self.keys[i], out=out)
        mix(out, scratch)
        if i % 2:  # the top 32 bits of the hash times a, divided by 2**32, lie in [0, a)
            np.right_shift(out, _HALF, out=out)
            np.multiply(out, self.left_size, out=out)
            np.right_shift(out, _HALF, out=out)
        else:
            np.right_shift(out, self.right_drop, out=out)

    def _tables_for(self, count: int) -> list[np.ndarray] | None:
        """The tables, for ``count`` numbers; None while these are hashed."""
        if self.tables is None and self.hashed_first <= 0:
            halves = np.arange(int(self.right_mask) + 1, dtype=np.uint64)
            tables = [np.empty_like(halves) for _ in self.keys]
            for i, table in enumerate(tables):
                self.hash(halves, i, out=table, scratch=np.empty_like(halves))
            self.tables = tables
        self.hashed_first -= count
        return self.tables


@lru_cache(maxsize=2)  # of the epoch under way and the next one
def _network(n: int, key: int) -> _Network:
    return _Network(n, key)
