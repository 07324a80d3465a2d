"""Progress per second: which layout of which batch reaches the target soonest."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from swell.core.apportion import apportion
from swell.core.feasibility import MicroBounds, batch_bounds, most_micro_batches, require_fit
from swell.core.throughput import Fit
from swell.core.types import Layout
from swell.errors import PlanError

_PER_OCTAVE = 2  # batches between one and its double; goodput is flat enough near its maximum for that
_FINER = (1, 2, 3, 4, 6, 8)  # multiples of the least accumulation to consider


@dataclass(frozen=True, eq=False)
class Candidates:
    """Layouts to choose from, one per element: smallest batch first, then least accumulation."""

    global_batch: np.ndarray
    micro_batch: np.ndarray  # the largest of the layout
    accumulation: np.ndarray

    def __len__(self) -> int:
        return len(self.global_batch)

    def layout(self, index: int) -> Layout:
        """The element as the value that a policy returns."""
        return Layout(global_batch=int(self.global_batch[index]), micro_batch=int(self.micro_batch[index]))


def goodput(
    batch: np.ndarray | float,
    time: np.ndarray | float,
    base: float,
    noise_scale: np.ndarray | float,
) -> np.ndarray:
    r"""Samples per second, each weighted by its worth relative to one at the base batch; arguments are broadcast.

    .. math:: \mathrm{goodput}(B) = \frac{B}{T} \cdot \mathrm{EFF}(B), \qquad
              \mathrm{EFF}(B) = \frac{\varphi + B_0}{\varphi + B}

    ``noise_scale`` is :math:`\varphi` in samples and may be infinite; ``time`` is in seconds.
    Reference: Qiao et al., Pollux, OSDI 2021, section 3, https://arxiv.org/abs/2008.12260

    >>> goodput(256, 0.5, 64, 128)
    array(256.)
    """
    batch, time, phi = np.asarray(batch, float), np.asarray(time, float), np.asarray(noise_scale, float)
    finite = np.where(np.isfinite(phi), phi, 0.0)
    efficiency = np.where(np.isfinite(phi), (finite + base) / (finite + batch), 1.0)
    return np.asarray(batch / time * efficiency)


def best(value: np.ndarray) -> int:
    """Index of the highest value; among equals the first, which is the smallest batch of candidates.

    >>> best(np.array([1.0, 3.0, 2.0, 3.0]))
    1
    """
    return int(np.argmax(value >= value.max() * (1 - 1e-9)))


@lru_cache(maxsize=256)
def candidates(
    *,
    replicas: int,
    base: int,
    max_batch: int,
    micro: tuple[int, int] | None = None,
    shrink: bool = False,
    capacity: tuple[float, ...] = (),
) -> Candidates:
    """Layouts of batches from ``base`` to ``max_batch`` on these replicas, two or more for each doubling.

    Each can be planned exactly. No batch is above ``max_batch``, no micro-batch outside ``micro`` (both ends included).
    Apart from the ends, shares are equal and micro-batches are 2 or 3 times a power of two. Machines compute these
    sizes well, and they are few: a new size costs time at first, because kernels are chosen and graphs compiled. Half
    of such a size, which a step split for measuring has, is such a size too. ``capacity``, the relative speed of each
    replica, makes shares uneven. With ``shrink`` batches start at the smallest that fits. Raises ``PlanError``, with
    the numbers to change, if none fits.

    >>> some = candidates(replicas=2, base=128, max_batch=256, micro=(32, 64))
    >>> list(zip(some.global_batch.tolist(), some.micro_batch.tolist(), some.accumulation.tolist()))[:4]
    [(128, 64, 1), (128, 32, 2), (192, 48, 2), (256, 64, 2)]
    """
    low, high = micro if micro is not None else (1, max_batch)
    first = 1 if shrink else base
    first, last = batch_bounds(replicas, min_batch=first, max_batch=max_batch, min_micro=low, max_micro=high)
    whole = replicas * high  # full micro-batches on all replicas
    exact = {first, last} | ({base} if first <= base <= last and _fits(base, replicas, low, high) else set())
    exact |= {whole * count for count in _geometric(-(-first // whole), last // whole)}
    options = {layout for batch in exact for layout in _planned(batch, replicas, low, high, capacity)}
    for batch in _geometric(first, last):
        for accumulation in _accumulations(-(-batch // replicas), low, high):
            size = min(high, max(low, _fast_size(batch // (replicas * accumulation))))
            even = replicas * size * accumulation
            if first <= even <= last:
                option = (even, size, accumulation)
                options.add(_layout(even, replicas, low, size, capacity) if capacity else option)
    return _sorted(options)


@lru_cache(maxsize=256)
def layouts(
    batch: int, *, replicas: int, micro: tuple[int, int] | None = None, capacity: tuple[float, ...] = ()
) -> Candidates:
    """The ways to lay out exactly this batch: with the least accumulation, and with more and smaller micro-batches.

    Raises ``PlanError``, with the numbers to change, if there is none.

    >>> ways = layouts(128, replicas=2, micro=(16, 64))
    >>> ways.micro_batch.tolist(), ways.accumulation.tolist()
    ([64, 32, 22, 16], [1, 2, 3, 4])
    """
    low, high = micro if micro is not None else (1, batch)
    require_fit(batch, replicas, MicroBounds(low, high))
    return _sorted(_planned(batch, replicas, low, high, capacity))


class Outlook(NamedTuple):
    """The speedup that another world would bring."""

    speedup: float  # goodput relative to now; 0 if no batch fits
    error: float  # its relative error, one standard deviation


def outlook(
    fit: Fit,
    *,
    replicas: Iterable[int],
    now: tuple[int, int],
    base: int,
    max_batch: Callable[[int], int],
    noise_scale: float,
    micro: tuple[int, int] | None = None,
    shrink: bool = False,
) -> dict[int, Outlook]:
    """The best goodput on each number of replicas, relative to the best in the world of ``now``: (replicas, nodes).

    ``max_batch`` returns the largest batch for a number of replicas; a world in which no batch fits has speedup 0.
    Other worlds are assumed to have as many replicas per node as the present one, or one node if that has one. The
    error is that of the step time predicted there. Raises ``PlanError`` if no batch fits in the present world.
    """
    packed = -(-now[0] // now[1]) if now[1] > 1 else sys.maxsize

    def highest(count: int) -> tuple[float, float]:
        options = candidates(replicas=count, base=base, max_batch=max_batch(count), micro=micro, shrink=shrink)
        times = fit.predict(
            replicas=count,
            nodes=-(-count // packed),
            micro_batch=options.micro_batch,
            accumulation=options.accumulation,
        )
        value = goodput(options.global_batch, times.step_s, base, noise_scale)
        return float(value.max()), float(times.error[best(value)])

    present, outlooks = highest(now[0])[0], {}
    for count in replicas:
        try:
            value, error = highest(count)
            outlooks[count] = Outlook(value / present, error)
        except PlanError:
            outlooks[count] = Outlook(0.0, 0.0)
    return outlooks


def _planned(batch: int, replicas: int, low: int, high: int, capacity: tuple[float, ...]) -> set[tuple[int, int, int]]:
    """The layout with the least accumulation, and some with more and smaller micro-batches."""
    first = _layout(batch, replicas, low, high, capacity)
    share = first[1] * first[2]  # no smaller than the largest share
    finer = {-(-share // accumulation) for accumulation in _accumulations(share, low, high)}
    fitting = [size for size in finer if size < first[1] and _fits(batch, replicas, low, size)]
    return {first} | {_layout(batch, replicas, low, size, capacity) for size in fitting}


def _fits(batch: int, replicas: int, low: int, high: int) -> bool:
    return low <= high and most_micro_batches(batch, batch, MicroBounds(low, high)) >= replicas


def _layout(batch: int, replicas: int, low: int, high: int, capacity: tuple[float, ...]) -> tuple[int, int, int]:
    """Batch, micro-batch and accumulation of ``plan(...)``, without building every micro-batch."""
    large, small = -(-batch // replicas), batch // replicas
    shares = apportion(batch, capacity, at_least=low) if capacity else [large, small]
    cuts = [-(-share // high) for share in shares]
    if all(low * cut <= share for share, cut in zip(shares, cuts, strict=True)):
        return batch, max(-(-share // cut) for share, cut in zip(shares, cuts, strict=True)), max(cuts)
    number = min(max(replicas, -(-batch // high)), batch // low)
    dealt = max(apportion(number, capacity, at_least=1)) if capacity else -(-number // replicas)
    return batch, -(-batch // number), dealt


def _accumulations(share: int, low: int, high: int) -> Iterator[int]:
    least = -(-share // high)
    return (least * finer for finer in _FINER if finer == 1 or share >= low * least * finer)


def _geometric(first: int, last: int) -> set[int]:
    """Whole numbers from first to last, two for each doubling."""
    count = int(math.log2(last / first) * _PER_OCTAVE) + 1 if 0 < first <= last else 0
    return {round(first * 2 ** (step / _PER_OCTAVE)) for step in range(count)}


def _fast_size(size: int) -> int:
    """The number nearest to ``size`` that is 2 or 3 times a power of two; below 4 the size itself."""
    half = max(size.bit_length() - 2, 0)
    return (size + (1 << half >> 1)) >> half << half


def _sorted(options: Iterable[tuple[int, int, int]]) -> Candidates:
    ordered = sorted(options, key=lambda layout: (layout[0], layout[2], -layout[1]))
    return Candidates(*(np.array(column) for column in zip(*ordered, strict=True)))
