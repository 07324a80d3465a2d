"""Fewer points that draw the same picture: the extremes of every pixel column stay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def kept_rows(
    x: Sequence[float], extremes: Sequence[Sequence[float]], levels: Sequence[Sequence[float]], *, points: int
) -> np.ndarray:
    """Which rows to draw, in their order, at most about ``points``: the first and last of all, and of each column the
    smallest and largest value of every series in ``extremes``. Rows at which a series in ``levels`` changes stay too,
    as far as there is room.

    >>> kept_rows(range(1000), [[n % 100 for n in range(1000)]], [], points=40).size <= 40
    True
    """
    count = len(x)
    if count <= points:
        return np.arange(count)
    places = np.asarray(x, float)
    chosen: list[np.ndarray] = [np.array([0, count - 1])]
    changes = [np.flatnonzero(np.diff(np.asarray(level, float), prepend=np.nan) != 0) for level in levels]
    if changes:
        moved = np.unique(np.concatenate(changes))
        moved = np.unique(np.concatenate([moved, np.maximum(moved - 1, 0)]))  # the level before the change as well
        stride = -(-len(moved) // max(1, points // 2))
        chosen.append(moved[::stride])
    room = points - sum(map(len, chosen))
    columns = max(1, room // (2 * max(1, len(extremes))))
    span = places[-1] - places[0]
    column = np.minimum(((places - places[0]) / (span or 1.0) * columns).astype(int), columns - 1)
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    for series in extremes:
        values = np.asarray(series, float)
        for sign in (1.0, -1.0):
            chosen.append(_smallest(np.where(np.isnan(values), np.inf, sign * values), starts))
    return np.unique(np.concatenate(chosen))


def _smallest(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The row of the smallest value of each column."""
    ends = np.append(starts[1:], len(values))
    return np.array([start + int(np.argmin(values[start:end])) for start, end in zip(starts, ends, strict=True)])
