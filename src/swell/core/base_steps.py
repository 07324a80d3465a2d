"""How many base steps samples are worth by their number, before any rule looks at the gradient's noise."""

from __future__ import annotations


def base_steps(start: int, stop: int, *, base: int, length: int, drop_last: bool = False) -> float:
    """Base steps of the positions ``start`` to ``stop`` of an epoch of ``length`` samples.

    A loop at the base batch ends an epoch with a short step and counts it as one. So the samples of the last, short
    base batch count ``base / (length % base)`` times as much as others, and every layout of an epoch adds up to what
    that loop counts: ``ceil(length / base)``. With ``drop_last`` that loop leaves them out, and all samples count the
    same.

    >>> base_steps(64, 96, base=32, length=100), base_steps(96, 100, base=32, length=100)
    (1.0, 1.0)
    >>> base_steps(0, 64, base=32, length=100), base_steps(64, 100, base=32, length=100)
    (2.0, 2.0)
    >>> base_steps(96, 98, base=32, length=100), base_steps(98, 100, base=32, length=100)
    (0.5, 0.5)
    >>> base_steps(64, 100, base=32, length=100, drop_last=True)
    1.125
    """
    rest = 0 if drop_last else length % base
    short = length - rest  # where the short base batch begins
    if rest == 0 or stop <= short:
        return (stop - start) / base
    stretched = (stop - max(start, short)) / rest
    return max(0, short - start) / base + stretched


def base_steps_of_epoch(length: int, *, base: int, drop_last: bool = False) -> int:
    """Steps of a loop at the base batch over an epoch, at least 1; what ``len`` of its ``DataLoader`` says.

    >>> base_steps_of_epoch(100, base=32), base_steps_of_epoch(100, base=32, drop_last=True)
    (4, 3)
    """
    return max(1, length // base if drop_last else -(-length // base))
