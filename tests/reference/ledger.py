"""A ledger that keeps the samples themselves: a list of what is left, and a list of what was committed."""

from __future__ import annotations

from collections.abc import Sequence


class ListLedger:
    def __init__(self, samples: Sequence[int], *, drop_last: bool = False) -> None:
        self.left = list(samples)
        self.committed: list[int] = []
        self.drop_last = drop_last

    def take(self, global_batch: int) -> list[int] | None:
        """The next step's samples; they stay in the list until they are committed."""
        step = self.left[:global_batch]
        return None if not step or (self.drop_last and len(step) < global_batch) else step

    def commit(self, step: list[int]) -> None:
        self.committed += step
        del self.left[: len(step)]
