"""A torch data set, or the one inside a ``DataLoader``, as a source."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

from typing import Any

import keras
import numpy as np
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, default_collate

from swell.errors import DataError
from swell.integrations.keras.sources import IndexedSource


def torch_source(given: Any, *, shuffle: bool, seed: int) -> IndexedSource:
    """Samples by index, collated as the loader would; a loader's own sampler says whether they are shuffled."""
    collate = default_collate
    dataset: Any = given
    if isinstance(given, DataLoader):
        if not isinstance(given.sampler, (RandomSampler, SequentialSampler)):
            raise DataError(
                f"the DataLoader draws by a {type(given.sampler).__name__}, which swell cannot follow. Give its data "
                "set, or a loader with shuffle=True or shuffle=False."
            )
        dataset, shuffle = given.dataset, isinstance(given.sampler, RandomSampler)
        collate = given.collate_fn if given.batch_size is not None else default_collate
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise DataError(
            f"{type(dataset).__name__} has no length and no random access, and then no epoch can be resumed or laid "
            "out. Give a data set with __len__ and __getitem__."
        )

    def fetch(indices: np.ndarray) -> Any:
        batch = collate([dataset[int(index)] for index in indices])
        batch = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
        return keras.tree.map_structure(lambda t: t.numpy() if hasattr(t, "numpy") else np.asarray(t), batch)

    return IndexedSource(fetch, len(dataset), shuffle=shuffle, seed=seed)
