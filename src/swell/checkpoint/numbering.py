"""How replicas with disks of their own number the checkpoints of one run: each goes on from what the others know."""

from __future__ import annotations

import re
from collections.abc import Sequence

from swell.checkpoint.store import Store

_SHORT_HEXADECIMAL = re.compile("[0-9a-f]{12}")  # a number that a float holds exactly


class Numbering:
    """The last number and the run's id in a store, as numbers that replicas exchange; zeros without a store.

    On a disk that all replicas share, the disk says the same.
    """

    def __init__(self, store: Store | None) -> None:
        self._store = store

    def place(self) -> tuple[float, float]:
        """What others need to save after this replica."""
        if self._store is None:
            return 0.0, 0.0
        run_id = self._store.run_id
        return float(self._store.last), float(int(run_id, 16)) if _SHORT_HEXADECIMAL.fullmatch(run_id) else 0.0

    def follow(self, place: Sequence[float], *, writes: bool) -> None:
        """Go on from the ``place`` of the replica that has the run's state; one that ``writes`` keeps its disk's id."""
        if self._store is not None:
            self.reach(int(place[0]))
            if place[1] and not writes:
                self._store.run_id = f"{int(place[1]):012x}"

    def reach(self, number: int) -> None:
        """The run has a checkpoint with this number."""
        if self._store is not None:
            self._store.last = max(self._store.last, number)

    def count(self) -> None:
        """Another replica saves one; this one may have to write the next, on a disk that does not have it."""
        if self._store is not None:
            self._store.last += 1
