"""How many samples a batch seems to hold, by the shapes of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def rows(batch: Any) -> int | None:
    """The first dimension that all tensors of a batch share; None where they differ or there are none.

    Looks at tensors in tuples, lists and mappings, and not into other objects.

    >>> import torch
    >>> rows([torch.zeros(4, 8), torch.zeros(4)]), rows({"x": torch.zeros(3), "y": torch.zeros(2)}), rows("text")
    (4, None, None)
    """
    first = None
    for tensor in _tensors(batch):
        size = tensor.size(0) if tensor.dim() else None
        if size is None or first not in (None, size):
            return None
        first = size
    return first


def begins_with_rows(batch: Any, count: int) -> bool:
    """Whether the first value of a batch is a tensor of that many rows; then it seems to hold as many samples.

    >>> import torch
    >>> begins_with_rows([torch.zeros(4, 8), torch.zeros(4)], 4), begins_with_rows({"x": torch.zeros(3)}, 4)
    (True, False)
    """
    first = batch[0] if type(batch) in (list, tuple) and batch else batch
    return isinstance(first, Tensor) and first.dim() > 0 and first.size(0) == count


def samples_left_out(batch: Any, asked: int) -> int:
    """How many of the samples that were ``asked`` for a ``collate_fn`` seems to have left out; 0 if it may hold all.

    A batch need not have a row for each sample: tokens of all samples may be joined, time may be the first dimension,
    a sample may have several views. So rows count as samples only where every tensor has the same number of them, more
    than one and fewer than asked for, and no dimension of any tensor is the number asked for.

    >>> import torch
    >>> samples_left_out((torch.zeros(30, 8), torch.zeros(30)), 32), samples_left_out(torch.zeros(20, 32), 32)
    (2, 0)
    """
    for tensor in _tensors(batch):  # mostly the first has a row for each
        if asked in tensor.shape:
            return 0
    held = rows(batch)
    return 0 if held is None or not 1 < held < asked else asked - held


def _tensors(batch: Any) -> list[Tensor]:
    if isinstance(batch, Tensor):
        return [batch]
    if not isinstance(batch, (list, tuple)):
        if not isinstance(batch, Mapping):
            return []
        batch = batch.values()
    tensors: list[Tensor] = []
    for value in batch:
        if isinstance(value, Tensor):
            tensors.append(value)
        else:
            tensors += _tensors(value)
    return tensors
