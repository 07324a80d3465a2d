"""How the time between a cluster's notice and the kill is divided."""

from __future__ import annotations


def time_to_save(grace_s: int) -> int:
    """The seconds that workers get to save; the rest is for the processes around them to end.

    >>> time_to_save(120), time_to_save(30), time_to_save(1)
    (90, 20, 1)
    """
    return grace_s - min(30, grace_s // 3)
