"""The order of each epoch, from what a user would give to a ``DataLoader``.

Samplers of ``torch.utils.data`` are replaced by orders of the same distribution that depend on ``(seed, epoch)`` alone
and have random access; their own generators are not used. The indices of any other sampler are read once per epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from swell.core.hashing import derive_key, hash_positions
from swell.core.order import Given, Sequential, Shuffled, Weighted, seed_number
from swell.core.protocols import Order
from swell.data.seeding import seeded
from swell.errors import ConfigError, DataError

_RACE, _LISTED = 4, 5  # give these random numbers other keys than those of the same seed elsewhere

Orders = Callable[[int], Order]


def orders(
    dataset: Any,
    *,
    seed: int,
    shuffle: bool = False,
    weights: Iterable[float] | None = None,
    order: Sequence[int] | np.ndarray | Callable[[int], Any] | None = None,
    sampler: Iterable[int] | None = None,
) -> Orders:
    """A function from epoch to that epoch's order over ``dataset``; give at most one argument that chooses it.

    - none: one sample after the other;
    - ``shuffle``: every sample once, in a random order, another in each epoch;
    - ``weights``: as many draws with replacement as there are samples, sample ``i`` in proportion to ``weights[i]``;
    - ``order``: these indices, in each epoch; or a function from epoch to indices or to an ``Order``;
    - ``sampler``: a sampler of ``torch.utils.data``, or anything that yields indices.

    The indices of a sampler that is not torch's own are read once per epoch, after its ``set_epoch`` if it has one, and
    with the global random numbers of Python, numpy and torch seeded from ``(seed, epoch)``. It must give every replica
    the same indices: a generator of its own must be seeded in ``set_epoch``, or a resumed run takes another order.

    The orders of the last two epochs are kept. Raises ``ConfigError`` if two arguments choose the order or one does not
    fit the data set, ``DataError`` if the data set is empty or of unknown length.

    >>> order_of = orders("abcdef", seed=0, shuffle=True)
    >>> sorted(order_of(3).indices(0, 6).tolist())
    [0, 1, 2, 3, 4, 5]
    """
    choices = {"shuffle": shuffle or None, "weights": weights, "order": order, "sampler": sampler}
    names = [name for name, value in choices.items() if value is not None]
    if len(names) > 1:
        raise ConfigError(f"{' and '.join(names)} choose the order of samples; expected one of them. Leave one out.")
    n, seed = _length(dataset), seed_number(seed)
    if weights is not None:
        order_of = _by_weight(weights, n=n, seed=seed)
    elif order is not None:
        order_of = _as_given(order, n=n)
    elif sampler is not None:
        order_of = _by_sampler(sampler, n=n, seed=seed)
    else:
        order_of = _shuffled(n, seed=seed) if shuffle else _always(Sequential(n))
    return lru_cache(maxsize=2)(order_of)


def _length(dataset: Any) -> int:
    try:
        n = len(dataset)
    except TypeError as error:
        raise DataError(
            f"dataset is {type(dataset).__name__}, which has no length; expected one to put samples in order. Give it "
            "a __len__, or give an IterableDataset, which is read as a stream."
        ) from error
    if n == 0:
        raise DataError(f"dataset is an empty {type(dataset).__name__}; expected at least 1 sample. Give another one.")
    return n


def _always(order: Order) -> Orders:
    return lambda epoch: order


def _shuffled(n: int, *, seed: int) -> Orders:
    return lambda epoch: Shuffled(n, seed=seed, epoch=epoch)


def _by_weight(weights: Iterable[float], *, n: int, seed: int, num_samples: int | None = None) -> Orders:
    table = np.asarray(weights if hasattr(weights, "__array__") else list(weights))
    if table.shape != (n,):
        raise ConfigError(f"weights has shape {table.shape}; expected ({n},). Give one weight for each sample.")
    Weighted(table, seed=seed, epoch=0)  # refuses wrong weights now, not in the first epoch
    return lambda epoch: Weighted(table, seed=seed, epoch=epoch, num_samples=num_samples)


def _as_given(order: Any, *, n: int) -> Orders:
    return (lambda epoch: _to_order(order(epoch), n=n)) if callable(order) else _always(_to_order(order, n=n))


def _to_order(order: Any, *, n: int) -> Order:
    return order if callable(getattr(order, "indices", None)) else Given(order, n=n)


def _by_sampler(sampler: Any, *, n: int, seed: int) -> Orders:
    # Exact types: a subclass may override anything, so its indices are read.
    kind = type(sampler)
    if isinstance(sampler, DistributedSampler) or (hasattr(sampler, "num_replicas") and hasattr(sampler, "rank")):
        name = kind.__name__ if "Distributed" in kind.__name__ else f"{kind.__name__}, a distributed sampler"
        raise ConfigError(
            f"sampler is a {name}, which splits the samples over a fixed number of replicas; expected one "
            "order for all replicas. Leave it out and give shuffle=True: the job splits the samples."
        )
    if isinstance(sampler, BatchSampler):
        raise ConfigError(
            "sampler is a BatchSampler; expected single indices, because the policy chooses the batch size. Give the "
            "sampler in it."
        )
    if kind is SequentialSampler:
        return _always(Sequential(_checked(len(sampler), n)))
    if kind is SubsetRandomSampler:
        table = Given(sampler.indices, n=n).indices(0, len(sampler))
        return lambda epoch: Selected(table, Shuffled(len(table), seed=seed, epoch=epoch))
    if kind is RandomSampler:
        size = _checked(len(sampler.data_source), n)
        if sampler.replacement:
            return _by_weight(np.ones(size), n=size, seed=seed, num_samples=len(sampler))
        return lambda epoch: Reshuffled(size, length=len(sampler), seed=seed, epoch=epoch)
    if kind is WeightedRandomSampler:
        weights = sampler.weights.numpy()
        _checked(len(weights), n)
        if sampler.replacement:
            return _by_weight(weights, n=len(weights), seed=seed, num_samples=len(sampler))
        return lambda epoch: _race(weights, length=len(sampler), seed=seed, epoch=epoch)
    return lambda epoch: _listed(sampler, n=n, seed=seed, epoch=epoch)


def _checked(size: int, n: int) -> int:
    if size > n:
        raise ConfigError(f"sampler is for {size} samples; expected at most {n}. Make it for this data set.")
    return size


def _listed(sampler: Any, *, n: int, seed: int, epoch: int) -> Order:
    with seeded(derive_key(_LISTED, seed, epoch)):
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        return Given(list(sampler), n=n)


def _race(weights: np.ndarray, *, length: int, seed: int, epoch: int) -> Order:
    r"""Weighted draws without replacement: sorting samples by ``-log(u_i) / w_i`` gives the order of the draws.

    Reference: Efraimidis and Spirakis 2006, "Weighted random sampling with a reservoir", algorithm A,
    https://doi.org/10.1016/j.ipl.2005.11.003
    """
    possible = np.flatnonzero(weights > 0)
    if length > len(possible):
        raise ConfigError(
            f"num_samples is {length} without replacement; expected at most {len(possible)}, the samples of positive "
            "weight. Draw fewer."
        )
    hashed = hash_positions(possible, key=derive_key(_RACE, seed, epoch))
    uniform = ((hashed >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    finish = -np.log(uniform) / weights[possible]
    return Given(possible[np.argsort(finish, kind="stable")[:length]])


@dataclass(frozen=True, slots=True, eq=False)
class Selected:
    """An order over a table of data set indices.

    >>> Selected(np.array([7, 8, 9]), Sequential(3)).indices(1, 3).tolist()
    [8, 9]
    """

    table: np.ndarray
    order: Order

    def __len__(self) -> int:
        return len(self.order)

    def indices(self, start: int, stop: int) -> np.ndarray:
        """Data set indices at positions ``start`` to ``stop``, int64."""
        return self.table[self.order.indices(start, stop)]


class Reshuffled:
    """One shuffle of ``n`` samples after another, up to ``length``; the first part of one if ``length < n``."""

    def __init__(self, n: int, *, length: int, seed: int, epoch: int) -> None:
        count = -(-length // n)
        self._n, self._length = n, length
        self._shuffles = [Shuffled(n, seed=seed, epoch=epoch * count + i) for i in range(count)]

    def __len__(self) -> int:
        return self._length

    def indices(self, start: int, stop: int) -> np.ndarray:
        """Data set indices at positions ``start`` to ``stop``, int64."""
        indices = Sequential(self._length).indices(start, stop)  # checks the bounds
        for i in range(start // self._n, -(-stop // self._n)):
            first = max(start, i * self._n)
            last = min(stop, (i + 1) * self._n)
            indices[first - start : last - start] = self._shuffles[i].indices(first - i * self._n, last - i * self._n)
        return indices
