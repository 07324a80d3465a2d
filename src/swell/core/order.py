"""The order of one epoch's samples: sequential, shuffled, weighted or given, each with random access.

An order is a function of its data, ``seed`` and ``epoch`` alone. It does not know replicas, batches or resumes, so none
of them can change it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass

import numpy as np

from swell.core.counts import whole_number
from swell.core.hashing import derive_key, hash_positions
from swell.core.permutation import LARGEST, permute
from swell.errors import ConfigError, DataError

_WEIGHTS = "expected one weight per sample. Give a flat list of numbers, 0 or more"
_INDICES = "expected data set indices. Give a flat list of whole numbers that fit in 64 bits"
_SHUFFLED, _WEIGHTED = 1, 2  # part of the key, so that the two never share random numbers


@dataclass(frozen=True, slots=True)
class Sequential:
    """Samples 0, 1, ..., n - 1.

    >>> Sequential(10).indices(4, 7).tolist()
    [4, 5, 6]
    """

    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", _data_size(self.n))

    def __len__(self) -> int:
        return self.n

    def indices(self, start: int, stop: int) -> np.ndarray:
        """Data set indices at positions ``start`` to ``stop``, int64."""
        return _positions(start, stop, length=self.n)


@dataclass(frozen=True, slots=True)
class Shuffled:
    """Every sample once, in a random order that depends on ``(n, seed, epoch)`` alone. Nothing is stored.

    ``seed`` is from 0 to 2**64 - 1. :func:`swell.core.permutation.permute` does the work.

    >>> Shuffled(10, seed=0, epoch=0).indices(0, 10).tolist()
    [8, 2, 5, 0, 7, 9, 6, 4, 1, 3]
    >>> Shuffled(10, seed=0, epoch=0).indices(4, 7).tolist()
    [7, 9, 6]
    """

    n: int
    _: KW_ONLY
    seed: int
    epoch: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", _data_size(self.n))
        object.__setattr__(self, "seed", seed_number(self.seed))
        object.__setattr__(self, "epoch", whole_number(self.epoch, name="epoch", at_least=0))

    def __len__(self) -> int:
        return self.n

    def indices(self, start: int, stop: int) -> np.ndarray:
        """Data set indices at positions ``start`` to ``stop``, int64."""
        positions = _positions(start, stop, length=self.n)
        return permute(positions, n=self.n, key=derive_key(_SHUFFLED, self.seed, self.epoch))


class Weighted:
    """``num_samples`` draws with replacement, sample ``i`` with probability ``weights[i] / sum(weights)``.

    A uniform number is hashed from ``(seed, epoch, position)``, and the sample drawn at that position is the one whose
    stretch of the cumulative weights holds it. So every position can be drawn on its own. "Every sample once" then
    means every draw once. ``num_samples`` is ``len(weights)`` by default. Holds 8 bytes per weight.

    Raises ``ConfigError`` if a weight is negative or not finite or all are zero, ``DataError`` if there is none.

    >>> Weighted([1, 0, 3], seed=0, epoch=0, num_samples=8).indices(0, 8).tolist()
    [2, 0, 2, 2, 2, 2, 0, 2]
    """

    __slots__ = ("_cumulative", "_length", "epoch", "seed")

    def __init__(
        self, weights: Iterable[float] | np.ndarray, *, seed: int, epoch: int, num_samples: int | None = None
    ) -> None:
        array = _weights(weights)
        self.seed = seed_number(seed)
        self.epoch = whole_number(epoch, name="epoch", at_least=0)
        self._length = len(array) if num_samples is None else whole_number(num_samples, name="num_samples")
        with np.errstate(over="ignore"):
            self._cumulative = np.cumsum(array)
        if not 0 < self._cumulative[-1] < np.inf:
            raise ConfigError(
                f"the sum of weights is {self._cumulative[-1]}; expected a finite float64 above 0. Give at least one "
                "positive weight, and smaller ones if the sum overflows."
            )

    def __len__(self) -> int:
        return self._length

    def indices(self, start: int, stop: int) -> np.ndarray:
        """Data set indices at positions ``start`` to ``stop``, int64."""
        positions = _positions(start, stop, length=self._length)
        hashed = hash_positions(positions, key=derive_key(_WEIGHTED, self.seed, self.epoch))
        uniform = (hashed >> np.uint64(11)).astype(np.float64) * 2.0**-53  # in [0, 1), every value exact
        total = self._cumulative[-1]
        # Rounding may lift a product to the total, which is in no sample's stretch.
        targets = np.minimum(uniform * total, np.nextafter(total, 0.0))
        return np.searchsorted(self._cumulative, targets, side="right").astype(np.int64)


class Given:
    """The data set indices you give, in that order; any number of them, repeats allowed.

    With ``n``, the size of the data set, every index is checked against it. The indices are copied, 8 bytes each. For
    another order in each epoch, give another one.

    Raises ``DataError`` if there is no index or one is out of range, ``ConfigError`` if one is not a whole number.

    >>> Given([3, 1, 1, 0], n=4).indices(1, 4).tolist()
    [1, 1, 0]
    """

    __slots__ = ("_indices",)

    def __init__(self, indices: Iterable[int] | np.ndarray, *, n: int | None = None) -> None:
        self._indices = _indices(indices)
        lowest, highest = int(self._indices.min()), int(self._indices.max())
        below = LARGEST if n is None else _data_size(n)
        if lowest < 0 or highest >= below:
            raise DataError(
                f"an index of the order is {lowest if lowest < 0 else highest}; expected 0 to {below - 1}"
                + (f", because the data set has {below} samples" if n is not None else "")
                + ". Remove the indices outside."
            )

    def __len__(self) -> int:
        return len(self._indices)

    def indices(self, start: int, stop: int) -> np.ndarray:
        """Data set indices at positions ``start`` to ``stop``, int64."""
        start, stop = _span(start, stop, length=len(self))
        return self._indices[start:stop].copy()


def seed_number(seed: int) -> int:
    """``seed`` as an ``int`` from 0 to 2**64 - 1, which every order accepts; ``ConfigError`` otherwise."""
    return whole_number(seed, name="seed", at_least=0, at_most=2**64 - 1)


def _data_size(n: int) -> int:
    if whole_number(n, name="n", at_least=0, at_most=LARGEST) == 0:
        raise DataError("the data set is empty; expected at least 1 sample. Give another data set.")
    return int(n)


def _positions(start: int, stop: int, *, length: int) -> np.ndarray:
    start, stop = _span(start, stop, length=length)
    return np.arange(start, stop, dtype=np.int64)


def _span(start: int, stop: int, *, length: int) -> tuple[int, int]:
    start = whole_number(start, name="start", at_least=0)
    stop = whole_number(stop, name="stop", at_least=0)
    if not start <= stop <= length:
        raise ConfigError(
            f"start is {start} and stop is {stop}; expected 0 <= start <= stop <= {length}, the length of the order. "
            "Ask for positions within it."
        )
    return start, stop


def _weights(weights: Iterable[float] | np.ndarray) -> np.ndarray:
    try:
        array = np.asarray(weights if hasattr(weights, "__array__") else list(weights), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"weights are not numbers ({error}); {_WEIGHTS}.") from None
    if array.ndim != 1:
        raise ConfigError(f"weights have {array.ndim} dimensions; {_WEIGHTS}.")
    if array.size == 0:
        raise DataError(f"weights are empty; {_WEIGHTS}.")
    wrong = np.flatnonzero(~np.isfinite(array) | (array < 0))
    if wrong.size:
        raise ConfigError(
            f"weights[{wrong[0]}] is {array[wrong[0]]}; expected a finite number, 0 or more. Change it, and all "
            f"{wrong.size} such weights of {array.size}."
        )
    return array


def _indices(indices: Iterable[int] | np.ndarray) -> np.ndarray:
    try:
        array = np.asarray(indices if hasattr(indices, "__array__") else list(indices))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the order is not a sequence ({error}); {_INDICES}.") from None
    if array.ndim != 1:
        raise ConfigError(f"the order has {array.ndim} dimensions; {_INDICES}.")
    if array.size == 0:
        raise DataError(f"the order is empty; {_INDICES}.")
    if array.dtype.kind == "b":
        raise ConfigError("the order is a mask of booleans; expected indices. Give numpy.flatnonzero(mask).")
    if array.dtype.kind not in "iu" or array.max() > np.iinfo(np.int64).max:
        raise ConfigError(f"the order has type {array.dtype}; {_INDICES}.")
    return array.astype(np.int64)
