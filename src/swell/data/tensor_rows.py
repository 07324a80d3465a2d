"""Batches of a ``TensorDataset``: rows of its tensors, read at once instead of one by one."""

from __future__ import annotations

from typing import Any

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
        part, size = self.dataset, len(self.dataset)
        if len(numbers) and not -size <= numbers.min() <= numbers.max() < size:
            wrong = next(number for number in numbers.tolist() if not -size <= number < size)
            raise IndexError(f"index {wrong} is out of range for a data set of {size} samples")
        while isinstance(part, Subset):
            numbers, part = np.asarray(part.indices, dtype=np.int64)[numbers], part.dataset
        rows = torch.from_numpy(np.asarray(numbers, dtype=np.int64))
        return (rows % len(part)).to(part.tensors[0].device)  # a negative index counts from the end

    def __getitems__(self, rows: Tensor) -> list[Tensor]:
        tensors = _whole(self.dataset).tensors
        rows = rows.to(tensors[0].device)  # somebody may have moved them since the block was prepared
        return [tensor.index_select(0, rows) for tensor in tensors]

    @staticmethod
    def collate(batch: list[Tensor]) -> list[Tensor]:
        """In place of ``default_collate``: the batch is whole already."""
        return batch


def _whole(dataset: Any) -> Any:
    """The data set that nested subsets are of."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset
