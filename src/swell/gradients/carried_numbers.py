"""Numbers of every replica that travel with the gradients of a small network, in the last of its buckets.

An exchange of its own would take as long again. The numbers arrive exactly, though they travel in a tensor that is
summed: each replica writes its float64 numbers into a row of its own, as whole numbers below 65,536, four for each, and
all others have zeros there. So the sum holds them all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from swell.core.protocols import OverlappingCollective
from swell.gradients.buckets import Bucket

_WORDS = 4  # of 16 bits in a float64; float32 holds them exactly


def room_for(count: int, *, replicas: int) -> int:
    """How many elements ``count`` numbers of each replica need."""
    return _WORDS * count * replicas


def write_numbers(numbers: Sequence[float], room: Tensor, *, rank: int, replicas: int) -> None:
    """Fill this replica's row, and zeros in the others.

    >>> import torch
    >>> room = torch.ones(room_for(2, replicas=2))
    >>> write_numbers([0.1, float("inf")], room, rank=1, replicas=2)
    >>> read_numbers(room, replicas=2)
    [[0.0, 0.0], [0.1, inf]]
    """
    rows = room.numpy().reshape(replicas, -1)
    rows.fill(0)
    rows[rank] = np.array(numbers, dtype=np.float64).view(np.uint16)


def read_numbers(room: Tensor, *, replicas: int) -> list[list[float]]:
    """Every replica's numbers, in rank order."""
    words = room.numpy().astype(np.uint16)
    return words.view(np.float64).reshape(replicas, -1).tolist()


class CarriedNumbers:
    """Sends the last bucket together with numbers. Every replica begins the same exchanges in the same order.

    The buckets before it travel without numbers, as soon as they are full. Between two steps zeros travel in the place
    of gradients.
    """

    def __init__(self, buckets: Sequence[Bucket], room: Tensor, collective: OverlappingCollective) -> None:
        self._before, self._last = buckets[:-1], buckets[-1]
        self._all, self._collective = room, collective
        self._numbers = room[self._last.flat.numel() :]
        self.ahead = False  # whether the buckets before it were sent in a step that was left since

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """Every replica's numbers, in rank order, while no gradients wait for them."""
        absent = [] if self.ahead else [bucket for bucket in self._before if bucket.flight is None]
        flights = [self._collective.begin_sum(bucket.blank()) for bucket in absent]
        self._last.flat.zero_()
        self.begin(numbers)
        gathered = self.end()
        for flight in flights:
            flight.wait()
        return gathered

    def begin(self, numbers: Sequence[float]) -> None:
        """Send them, after the buckets before."""
        self.ahead = False
        write_numbers(numbers, self._numbers, rank=self._collective.rank, replicas=self._collective.size)
        self._last.flight = self._collective.begin_sum(self._all)

    def end(self) -> list[list[float]]:
        """Wait until they have arrived, and the gradients; raises ``WorldError`` if a replica was lost."""
        flight, self._last.flight = self._last.flight, None
        assert flight is not None
        flight.wait()
        return read_numbers(self._numbers, replicas=self._collective.size)
