"""Policies the slow, obvious way: every candidate is tried, every table is walked through."""

from __future__ import annotations

from fractions import Fraction


def fixed_batch(size: int, *, tolerance: Fraction, replicas: int, micro: int) -> int:
    """Of all sizes in the band, the multiple of replicas·micro nearest to the size; else of replicas; else the size."""
    band = [b for b in range(1, 2 * size + 1) if abs(b - size) <= tolerance * size]
    for multiple in (replicas * micro, replicas):
        even = [b for b in band if b % multiple == 0]
        if even:
            return min(even, key=lambda b: (abs(b - size), -b))
    return size


def schedule_batch(points: list[tuple[Fraction, int]], here: Fraction) -> int:
    """The batch of the last point that was reached."""
    batch = 0
    for when, size in points:
        if when <= here:
            batch = size
    return batch


def linear_ramp(start: int, end: int, *, part: Fraction, multiple: int) -> int:
    """The multiple nearest to the line from start to end, halves up."""
    if part >= 1:
        return end
    wanted = start + (end - start) * part
    candidates = range(multiple, 2 * max(start, end) + multiple, multiple)
    return min(candidates, key=lambda b: (abs(b - wanted), -b))


def rounded(batch: int, multiple: int, how: str, epoch_size: int | None) -> int:
    """The multiple, at least one, that is nearest (halves up), not below, or not above; within an epoch if possible."""
    candidates = range(multiple, batch + 2 * multiple, multiple)
    within = [b for b in candidates if epoch_size is None or b <= epoch_size or batch > epoch_size] or [multiple]
    if how == "up":
        return min((b for b in within if b >= batch), default=max(within))
    if how == "down":
        return max((b for b in within if b <= batch), default=multiple)
    return min(within, key=lambda b: (abs(b - batch), -b))


def trace_by_steps(rows: list[tuple[int, int]], step: int) -> int:
    """The size of the last row whose step has come."""
    return [size for start, size in rows if start <= step][-1]
