"""A ``tf.data.Dataset`` as a source: its samples in its own order, cut into other batches."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

from typing import Any

import keras
import numpy as np

from swell.core.counts import whole_number
from swell.errors import DataError


class TensorFlowSource:
    """Reads a data set of batches one sample after another; going back means reading it from its start.

    Its order is its own: shuffle it with a fixed seed and ``reshuffle_each_iteration=False``, so that a resumed epoch
    continues where it was. ``length`` is its number of samples; if it is None, the data set is read once to count them.
    """

    def __init__(self, dataset: Any, *, length: int | None) -> None:
        _check_batched(dataset.element_spec)
        if int(dataset.cardinality()) < 0 and length is None:
            raise DataError(
                "the tf.data.Dataset has an unknown or infinite number of batches; expected length=, the samples of an "
                "epoch. Call elastic.data(dataset, length=60000)."
            )
        self._dataset = dataset
        self.length = whole_number(sum(_rows(b) for b in dataset) if length is None else length, name="length")
        self._epoch, self._position = -1, 0
        self._batches: Any = None
        self._rest: Any = None

    def take(self, epoch: int, start: int, stop: int) -> Any:
        if epoch != self._epoch or start < self._position:
            self._epoch, self._position = epoch, 0
            self._batches, self._rest = iter(self._dataset), None
        while self._position < start:
            self._position += _rows(self._next(start - self._position))
        parts = []
        while self._position < stop:
            part = self._next(stop - self._position)
            self._position += _rows(part)
            parts.append(part)
        return parts[0] if len(parts) == 1 else keras.tree.map_structure(lambda *a: np.concatenate(a), *parts)

    def _next(self, most: int) -> Any:
        """The next samples, at most ``most`` of them."""
        if self._rest is None:
            batch = next(self._batches, None)
            if batch is None:
                raise DataError(
                    f"the data set ended after {self._position} samples; expected {self.length}. Correct length=."
                )
            batch = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
            self._rest = keras.tree.map_structure(lambda t: t.numpy(), batch)
        whole, self._rest = self._rest, None
        if _rows(whole) > most:
            self._rest = keras.tree.map_structure(lambda a: a[most:], whole)
        return keras.tree.map_structure(lambda a: a[:most], whole)


def _rows(batch: Any) -> int:
    return int(keras.tree.flatten(batch)[0].shape[0])


def _check_batched(spec: Any) -> None:
    """Refuse single samples: parts without rows, or parts whose numbers of rows are known to differ."""
    shapes = [part.shape for part in keras.tree.flatten(spec) if getattr(part, "shape", None) is not None]
    known = [shape for shape in shapes if shape.rank is not None]
    rows = {shape[0] for shape in known if shape.rank > 0} - {None}
    if len(rows) > 1 or any(shape.rank == 0 for shape in known):
        raise DataError(
            f"the tf.data.Dataset gives single samples, of shapes {', '.join(map(str, shapes))}; expected batches, "
            "whose first axis counts samples. Call dataset.batch(...) with any size: swell cuts other batches."
        )
