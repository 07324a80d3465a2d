"""A torch data set, or the one inside a ``DataLoader``, as a source."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

from typing import Any

import keras
import numpy as np
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, default_collate

from swell.errors import DataError
from swell.integrations.keras.sources import IndexedSource


def torch_source(x: Any, *, shuffle: bool, seed: int) -> IndexedSource:
    """Samples by index, collated as the loader does; a loader's own sampler determines whether they are shuffled."""
    collate = default_collate
    dataset: Any = x
    if isinstance(x, DataLoader):
        if not isinstance(x.sampler, (RandomSampler, SequentialSampler)):
            raise DataError(
                f"the DataLoader's sampler is a {type(x.sampler).__name__}; expected a random or a sequential one. "
                "Give its data set, or a loader with shuffle=True or shuffle=False."
            )
        dataset, shuffle = x.dataset, isinstance(x.sampler, RandomSampler)
        collate = x.collate_fn if x.batch_size is not None else default_collate
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise DataError(
            f"the data set is a {type(dataset).__name__}, which has no length or no random access; expected both, "
            "without which an epoch cannot be resumed. Give a data set with __len__ and __getitem__."
        )

    def fetch(indices: np.ndarray) -> Any:
        batch = collate([dataset[int(index)] for index in indices])
        batch = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
        return keras.tree.map_structure(lambda t: t.numpy() if hasattr(t, "numpy") else np.asarray(t), batch)

    return IndexedSource(fetch, len(dataset), shuffle=shuffle, seed=seed)
