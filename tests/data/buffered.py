"""A stand-in for a Hugging Face streaming data set with a shuffle buffer, with the same contract and the same gaps."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset


class Buffered(IterableDataset[Any]):
    """Rows 0 to n - 1 through a shuffle buffer.

    As in ``datasets``, the order depends on seed and epoch, ``state_dict`` holds the position in the source and not
    what is in the buffer, and what ``skip`` returns is at epoch 0 again.
    """

    def __init__(self, n: int, *, buffer: int = 10, seed: int = 3, skipped: int = 0) -> None:
        self.n, self.buffer, self.skipped, self.epoch = n, buffer, skipped, 0
        self.seed = seed
        self.at = 0  # rows taken from the source
        self.begun_at: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.begun_at.append(self.at + self.skipped)
        for number, row in enumerate(self._shuffled()):
            if number >= self.skipped:
                yield row

    def _shuffled(self) -> Iterator[int]:
        draw = random.Random(1000 * self.seed + self.epoch)
        held: list[int] = []
        for row in range(self.at, self.n):
            self.at = row + 1
            if len(held) < self.buffer:
                held.append(row)
                continue
            place = draw.randrange(self.buffer)
            yield held[place]
            held[place] = row
        draw.shuffle(held)
        yield from held
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


class SkippingBuffered(Buffered):
    def skip(self, count: int) -> Buffered:
        return Buffered(self.n, buffer=self.buffer, seed=self.seed, skipped=count)
