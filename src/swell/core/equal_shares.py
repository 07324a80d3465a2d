"""Layouts in which every micro-batch of every replica has the same size: all that matter, however large the batch."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from swell.core.goodput import Candidates

_FEW = 4096  # a share up to this size is tried in every way
_STEP = 1.004  # above it, the ratio of neighbouring shares; the best of them is then within 0.1 % of the best of all
_FINER = 4  # and for each share the least accumulation and the next ones, because they may divide it better
_ALL = 2048  # accumulations of full micro-batches that are all tried


@lru_cache(maxsize=512)
def equal_shares(
    *, replicas: int, min_batch: int, max_batch: int, micro: tuple[int, int], accumulation: bool = True
) -> Candidates:
    """Layouts of batches from ``min_batch`` to ``max_batch`` in equal micro-batches within ``micro``; maybe none.

    Smallest batch first, then least accumulation. A share of up to 4096 samples is cut in every possible way. Larger
    shares are on a fine grid: a batch takes longer with each further micro-batch, so only the least accumulations of
    each share can be best.

    >>> some = equal_shares(replicas=3, min_batch=12, max_batch=20, micro=(2, 4))
    >>> list(zip(some.global_batch.tolist(), some.micro_batch.tolist(), some.accumulation.tolist()))
    [(12, 4, 1), (12, 2, 2), (18, 3, 2), (18, 2, 3)]
    """
    low, high = max(micro[0], 1), min(micro[1], max_batch // replicas)
    smallest, largest = -(-min_batch // replicas), max_batch // replicas  # shares
    if low > high or smallest > largest:
        return _none()
    if not accumulation:
        sizes = _grid(max(low, smallest), high)
        ways = np.stack([sizes, np.ones_like(sizes)], axis=1)
    elif largest <= _FEW:
        ways = np.concatenate([_with_size(size, smallest, largest) for size in range(low, high + 1)])
    else:
        ways = np.concatenate([_near(_grid(smallest, largest), low, high), _full(low, high, smallest, largest)])
    share = ways[:, 0] * ways[:, 1]
    fits = (low <= ways[:, 0]) & (ways[:, 0] <= high) & (smallest <= share) & (share <= largest)
    ways = np.unique(ways[fits], axis=0)
    share = ways[:, 0] * ways[:, 1]
    order = np.lexsort((ways[:, 1], share))
    return Candidates(replicas * share[order], ways[order, 0], ways[order, 1])


def _none() -> Candidates:
    return Candidates(*(np.zeros(0, int) for _ in range(3)))


def _with_size(size: int, smallest: int, largest: int) -> np.ndarray:
    """(size, accumulation) for every share that micro-batches of one size make."""
    counts = np.arange(-(-smallest // size), largest // size + 1)
    return np.stack([np.full_like(counts, size), counts], axis=1)


def _near(shares: np.ndarray, low: int, high: int) -> np.ndarray:
    """(size, accumulation) near each share, with the least accumulation and a few more."""
    least = np.maximum(-(-shares // high), 1)
    counts = (least[:, None] + np.arange(_FINER)).ravel()
    sizes = np.repeat(shares, _FINER) // counts
    both = np.concatenate([np.stack([sizes, counts], axis=1), np.stack([sizes + 1, counts], axis=1)])
    return np.clip(both, [low, 1], [high, np.iinfo(int).max])


def _full(low: int, high: int, smallest: int, largest: int) -> np.ndarray:
    """(size, accumulation) of micro-batches that are as large as possible: one more would take a step of its own."""
    first, last = -(-smallest // high), largest // low
    counts = np.unique(np.concatenate([np.arange(first, min(first + _ALL, last) + 1), _grid(max(first, 1), last)]))
    counts = counts[counts > 0]
    return np.stack([np.minimum(high, largest // counts), counts], axis=1)


def _grid(first: int, last: int) -> np.ndarray:
    """Whole numbers from first to last, both included: all of them if they are few, else at equal ratios."""
    if first > last:
        return np.zeros(0, int)
    if last - first < _FEW:
        return np.arange(first, last + 1)
    number = int(np.log(last / max(first, 1)) / np.log(_STEP)) + 2
    points = np.rint(np.geomspace(max(first, 1), last, number)).astype(int)
    return np.unique(np.clip(np.concatenate([points, [first, last]]), first, last))
