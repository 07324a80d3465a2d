"""Random transforms that depend on the sample alone, not on the replica, batch or worker that reads it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from swell.core.hashing import derive_key
from swell.core.order import seed_number

_SAMPLE = 3  # keeps these keys apart from those of the orders


class SeededSamples(Dataset[Any]):
    """A data set whose sample at a position of an epoch always sees the same random numbers.

    Before each sample is read, the global generators of Python's ``random``, ``numpy.random`` and torch (on the CPU)
    are seeded from ``(seed, epoch, position)``. In the main process their state is restored afterwards. The position is
    used and not the index, so that a sample drawn twice in an epoch, by weight, is transformed in two ways. Costs about
    30 microseconds a sample. It cannot seed the data set's own generators (``numpy.random.default_rng``), and it does
    not use ``__getitems__``, which would read several samples at once.

    Its keys are ``(epoch, position, index)``, as :meth:`swell.data.indices.Indices.keys` gives them. Other attributes
    are the data set's.

    >>> import random
    >>> class Dice:
    ...     def __getitem__(self, index):
    ...         return random.randint(1, 6)
    >>> dice = SeededSamples(Dice(), seed=0)
    >>> [dice[0, position, 7] for position in range(4)] == [dice[0, position, 7] for position in range(4)]
    True
    """

    def __init__(self, dataset: Any, *, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed_number(seed)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: tuple[int, int, int]) -> Any:
        epoch, position, index = key
        with seeded(derive_key(_SAMPLE, self.seed, epoch, position)):
            return self.dataset[index]

    def __getattr__(self, name: str) -> Any:
        if name in ("dataset", "__getitems__") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """Seed the global generators from a 64-bit key, and restore their state afterwards.

    A worker does not restore it, because that costs as much as seeding and nothing else there uses them.
    """
    restore = get_worker_info() is None
    if restore:
        python, numpy, pytorch = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    random.seed(key)
    np.random.seed((key & 0xFFFFFFFF, key >> 32))
    torch.random.default_generator.manual_seed(key)
    try:
        yield
    finally:
        if restore:
            random.setstate(python)
            np.random.set_state(numpy)
            torch.random.set_rng_state(pytorch)
