"""Batches of a ``TensorDataset``: rows of its tensors, read at once instead of one by one."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset


class TensorRows(Dataset[Any]):
    """The batches that ``default_collate`` makes of a ``TensorDataset``, or of a ``Subset`` of one, value for value.

    A ``DataLoader`` indexes every tensor once for each sample and then stacks what it got, which takes longer than a
    step of a small network, and on an accelerator two kernels a sample. ``prepared`` turns a block of indices into what
    ``__getitems__`` takes: on the tensors' device, so that no batch has to wait for a transfer of its own.

    >>> rows = TensorRows(TensorDataset(torch.arange(8) * 10, torch.arange(8.0)))
    >>> rows.__getitems__(rows.prepared(np.array([3, 0])))
    [tensor([30,  0]), tensor([3., 0.])]
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    @staticmethod
    def fits(dataset: Any) -> bool:
        """Whether rows of this data set can be read at once, and are what its samples would be."""
        while type(dataset) is Subset and type(dataset.indices) in (list, range, np.ndarray):
            dataset = dataset.dataset
        if type(dataset) is not TensorDataset or len({tensor.device for tensor in dataset.tensors}) != 1:
            return False
        return all(type(tensor) is Tensor and tensor.is_contiguous() for tensor in dataset.tensors)

    def __len__(self) -> int:
        return len(self.dataset)

    def prepared(self, numbers: np.ndarray) -> Tensor:
        """These indices as a tensor beside those of the data set; ``IndexError`` for one that is out of range."""
        dataset, numbers = self.dataset, _within(numbers, len(self.dataset))
        while isinstance(dataset, Subset):
            numbers = np.asarray(dataset.indices, dtype=np.int64)[numbers]
            dataset = cast(Any, dataset.dataset)
            numbers = _within(numbers, len(dataset))
        return torch.from_numpy(numbers).to(dataset.tensors[0].device)

    def __getitems__(self, rows: Tensor) -> list[Tensor]:
        tensors = _whole(self.dataset).tensors
        if rows.is_cpu and tensors[0].is_cpu:
            return [tensor.index_select(0, rows) for tensor in tensors]
        rows = rows.to(tensors[0].device)  # somebody may have moved them since the block was prepared
        return [tensor[rows] for tensor in tensors]  # by the kernels that a script's own indexing loads

    @staticmethod
    def collate(batch: list[Tensor]) -> list[Tensor]:
        """In place of ``default_collate``: the batch is whole already."""
        return batch


def _within(numbers: np.ndarray, size: int) -> np.ndarray:
    """Indices from 0; one below 0 counts from the end, as in a list."""
    numbers = np.asarray(numbers, dtype=np.int64)
    wrong = numbers[(numbers < -size) | (numbers >= size)]
    if len(wrong):
        raise IndexError(f"index {wrong[0]} is out of range for a data set of {size} samples")
    return np.where(numbers < 0, numbers + size, numbers)


def _whole(dataset: Any) -> Any:
    """The data set that nested subsets are of."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset
