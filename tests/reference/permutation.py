"""The keyed permutation, one number at a time, in Python integers."""

from __future__ import annotations

MASK = 2**64 - 1
STRIDE = 0x9E3779B97F4A7C15


def splitmix64(seed: int, count: int) -> list[int]:
    """The first numbers of SplitMix64, as its authors write it: a state that is added to, and mixed."""
    numbers = []
    for _ in range(count):
        seed = (seed + STRIDE) & MASK
        numbers.append(mix(seed))
    return numbers


def mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def key_of(*words: int) -> int:
    key = 0
    for word in words:
        key = mix((key + STRIDE + word) & MASK)
    return key


def permuted(position: int, *, n: int, key: int) -> int:
    """Where the shuffle of ``range(n)`` puts one position."""
    if n <= 1024:
        hashes = splitmix64(key_of(key, n), n)
        return sorted(range(n), key=hashes.__getitem__)[position]
    bits = (n - 1).bit_length()
    b = 2 ** ((bits + 1) // 2)
    a = (n + b - 1) // b
    rounds = max(8, (64 + bits // 2 - 1) // (bits // 2))
    x = position
    while True:
        left, right = divmod(x, b)
        for i in range(rounds):
            if i % 2 == 0:
                hashed = mix((left + key_of(key, n, i)) & MASK)
                right = (right + hashed * b // 2**64) % b
            else:
                hashed = mix((right + key_of(key, n, i)) & MASK)
                left = (left + (hashed // 2**32) * a // 2**32) % a
        x = left * b + right
        if x < n:
            return x
