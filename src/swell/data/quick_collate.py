"""``default_collate`` for batches that are made in the main process, with the arrays of many samples joined at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

# ``collate`` and the table are what torch documents for teaching ``default_collate`` other types.
from torch.utils.data._utils.collate import collate, collate_numpy_array_fn, default_collate_fn_map

_NUMBERS = "biufc"  # kinds of arrays that hold numbers


def quick_collate(batch: list[Any]) -> Any:
    """The batch that ``default_collate`` makes, value for value.

    ``default_collate`` makes a tensor of each array before it joins them, which for small arrays takes longer than
    reading them. In a data-loading worker it is the quicker one, because it joins them in shared memory.

    >>> quick_collate([(np.zeros(2, np.float32), 0), (np.ones(2, np.float32), 1)])
    [tensor([[0., 0.],
            [1., 1.]]), tensor([0, 1])]
    """
    ways = default_collate_fn_map
    if ways.get(np.ndarray) is not collate_numpy_array_fn or tuple in ways:  # somebody has taught it others
        return default_collate(batch)
    ways = {**ways, np.ndarray: _join}
    if type(batch[0]) is not tuple:
        return collate(batch, collate_fn_map=ways)
    try:
        columns = list(zip(*batch, strict=True))  # what it does too, after a look at each sample
    except (TypeError, ValueError):  # samples of another kind, or of other lengths, which it names
        return collate(batch, collate_fn_map=ways)
    return [collate(column, collate_fn_map=ways) for column in columns]


def _join(batch: Sequence[np.ndarray], *, collate_fn_map: Any = None) -> Any:
    first = batch[0]
    kind, shape = first.dtype, first.shape
    alike = [type(array) is np.ndarray and array.dtype is kind and array.shape == shape for array in batch]
    if not shape or first.size == 0 or kind.kind not in _NUMBERS or not all(alike):
        return collate_numpy_array_fn(batch, collate_fn_map=collate_fn_map)
    joined = np.empty((len(batch), *shape), kind)  # rows in order, whatever the layout of the arrays
    np.concatenate(batch, out=joined.reshape(len(batch) * shape[0], *shape[1:]))
    return torch.from_numpy(joined)
