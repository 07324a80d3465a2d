"""A data set that is on the device already, for benchmarks that measure steps and not loading."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class Resident:
    """Samples that are on the device already, so that loading hides nothing."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, ...]]:
        return [tuple(t[indices[0] : indices[0] + len(indices)] for t in self.tensors)]


def first(batches: list[Any]) -> Any:
    """The only batch there is, as a collate function."""
    return batches[0]
