"""What a Keras user trains on, as a source that gives any stretch of an epoch's samples."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import keras
import numpy as np

from swell.core.counts import whole_number
from swell.core.order import Sequential, Shuffled
from swell.errors import DataError

_AHEAD = 1024  # positions that are looked up in the order at once; one by one they cost 1 % of a step


class Source(Protocol):
    """Samples of an epoch in one order, which depends on ``(seed, epoch)`` alone."""

    length: int

    def take(self, epoch: int, start: int, stop: int) -> Any:
        """The batch of positions ``start`` to ``stop``: ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``."""
        ...


def as_source(
    x: Any, y: Any = None, sample_weight: Any = None, *, shuffle: bool, seed: int, length: int | None
) -> Source:
    """The source for arrays, a ``PyDataset``, a ``tf.data.Dataset``, a torch data set or loader."""
    kind = _kind(x)
    if kind != "arrays" and (y is not None or sample_weight is not None):
        raise DataError(
            f"y or sample_weight was given beside a {type(x).__name__}; expected x alone. Let it give (x, y) or "
            "(x, y, sample_weight) itself."
        )
    if kind == "PyDataset":
        return PyDatasetSource(x, shuffle=shuffle, seed=seed)
    if kind == "tf.data":
        from swell.integrations.keras.tensorflow_source import TensorFlowSource

        return TensorFlowSource(x, length=length)
    if kind == "torch":
        from swell.integrations.keras.torch_source import torch_source

        return torch_source(x, shuffle=shuffle, seed=seed)
    if kind == "unknown":
        raise DataError(
            f"x is a {type(x).__name__}; expected data with a known length and random access, without which an epoch "
            "cannot be resumed. Give arrays, a keras.utils.PyDataset, a tf.data.Dataset with length=, or a torch data "
            "set."
        )
    return ArraySource(x, y, sample_weight, shuffle=shuffle, seed=seed)


class ClassWeighted:
    """Another source's samples, each with the weight of its class, as by ``class_weight`` of ``model.fit``.

    A class that is not named has weight 1. Labels are whole numbers, or rows whose largest entry is the class.
    """

    def __init__(self, source: Source, weights: Mapping[int, float]) -> None:
        self.length = source.length
        self._source = source
        self._weights = {int(kind): float(weight) for kind, weight in weights.items()}
        if self.length and len(self.take(0, 0, 1)[1].shape) > 2:
            raise DataError(
                "class_weight was given for labels of more than two axes; expected one class a sample. Give "
                "sample_weight instead."
            )

    def take(self, epoch: int, start: int, stop: int) -> Any:
        batch = self._source.take(epoch, start, stop)
        if len(batch) != 2 or not hasattr(batch[1], "shape"):
            raise DataError(
                f"class_weight was given and each sample has {len(batch)} part(s); expected (x, y) with one array y. "
                "Give sample_weight or class_weight, not both, and sample_weight if there are several outputs."
            )
        kinds = np.asarray(batch[1])
        if kinds.ndim > 1:
            kinds = kinds.argmax(axis=-1) if kinds.shape[-1] > 1 else kinds[..., 0]
        weights = [self._weights.get(int(kind), 1.0) for kind in np.round(kinds).ravel()]
        return (*batch, np.asarray(weights, keras.config.floatx()))

    def on_epoch_begin(self) -> None:
        """Pass it on to the source, if it has such a method."""
        getattr(self._source, "on_epoch_begin", lambda: None)()

    def on_epoch_end(self) -> None:
        """Pass it on to the source, if it has such a method."""
        getattr(self._source, "on_epoch_end", lambda: None)()


def _kind(x: Any) -> str:
    if isinstance(x, keras.utils.PyDataset):
        return "PyDataset"
    parents = {(parent.__module__.split(".")[0], parent.__name__) for parent in type(x).__mro__}
    if ("tensorflow", "DatasetV2") in parents:
        return "tf.data"
    if any(module == "torch" and name in ("Dataset", "DataLoader") for module, name in parents):
        return "torch"
    leaves = keras.tree.flatten(x)
    arrays = bool(leaves) and all(hasattr(leaf, "shape") or hasattr(leaf, "__array__") for leaf in leaves)
    if isinstance(x, (list, tuple)) and x and all(isinstance(leaf, (int, float)) for leaf in leaves):
        return "arrays"
    return "arrays" if arrays else "unknown"


class IndexedSource:
    """Samples that can be fetched by index, in a shuffled or the given order."""

    def __init__(self, fetch: Callable[[np.ndarray], Any], length: int, *, shuffle: bool, seed: int) -> None:
        if length < 1:
            raise DataError("the data has 0 samples; expected 1 or more. Give data that is not empty.")
        self.length = length
        self._fetch, self._shuffle, self._seed = fetch, shuffle, seed
        self._stretch: tuple[int, int, np.ndarray] = (-1, 0, np.zeros(0, int))  # epoch, first position, indices

    def take(self, epoch: int, start: int, stop: int) -> Any:
        known_epoch, first, indices = self._stretch
        if epoch != known_epoch or start < first or stop > first + len(indices):
            order = Shuffled(self.length, seed=self._seed, epoch=epoch) if self._shuffle else Sequential(self.length)
            first, indices = start, order.indices(start, min(self.length, max(stop, start + _AHEAD)))
            self._stretch = (epoch, first, indices)
        return self._fetch(indices[start - first : stop - first])


class ArraySource(IndexedSource):
    """Arrays or tensors of equal length, nested in any way; floating ones are cast as Keras casts them."""

    def __init__(self, x: Any, y: Any, sample_weight: Any, *, shuffle: bool, seed: int) -> None:
        parts = (x, y, sample_weight) if sample_weight is not None else (x, y) if y is not None else (x,)
        if sample_weight is not None and y is None:
            raise DataError("sample_weight was given without y; expected both. Give y too.")
        arrays = keras.tree.map_structure(_array, parts)
        lengths = sorted({len(array) for array in keras.tree.flatten(arrays)})
        if len(lengths) != 1:
            raise DataError(f"the arrays have lengths {lengths}; expected one length. Cut them to one length.")
        super().__init__(
            lambda indices: keras.tree.map_structure(lambda array: array[indices], arrays),
            lengths[0],
            shuffle=shuffle,
            seed=seed,
        )


def _array(value: Any) -> np.ndarray:
    array = np.asarray(keras.ops.convert_to_numpy(value) if hasattr(value, "dtype") else value)
    if array.ndim == 0:
        raise DataError(
            f"the data has a single number, {value!r}; expected arrays with one row a sample. Give it such an axis."
        )
    if array.dtype.kind == "f" and array.dtype.itemsize > 2:
        array = array.astype(keras.config.floatx(), copy=False)
    return array


class PyDatasetSource:
    """A ``PyDataset``'s samples, cut into other batches: its own batch size is only how it is read.

    Shuffling is of its batches, as in Keras. All its batches but the last must have one size.
    """

    def __init__(self, dataset: Any, *, shuffle: bool, seed: int) -> None:
        count = dataset.num_batches
        if count is None:
            raise DataError(
                "the PyDataset's num_batches is None; expected a number, because an epoch must end. Give it one."
            )
        self._dataset, self._count = dataset, whole_number(count, name="num_batches")
        self._shuffle, self._seed = shuffle, seed
        self._latest: tuple[int, Any] | None = None  # the batch that was read last, and its index
        self._size, self._last = _rows(self._read(0)), _rows(self._read(self._count - 1))
        self.length = self._size * (self._count - 1) + self._last

    def take(self, epoch: int, start: int, stop: int) -> Any:
        order = Shuffled(self._count, seed=self._seed, epoch=epoch) if self._shuffle else Sequential(self._count)
        batches = order.indices(0, self._count)
        sizes = np.where(batches == self._count - 1, self._last, self._size)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        parts = []
        for place in range(int(np.searchsorted(starts, start, side="right")) - 1, self._count):
            low, high = max(start, int(starts[place])), min(stop, int(starts[place + 1]))
            if low >= stop:
                break
            batch = self._read(int(batches[place]))
            if _rows(batch) != sizes[place]:
                raise DataError(
                    f"batch {batches[place]} of the PyDataset has {_rows(batch)} samples; expected {sizes[place]}. "
                    "Give all batches but the last one size."
                )
            cut = slice(low - int(starts[place]), high - int(starts[place]))
            parts.append(keras.tree.map_structure(lambda array, cut=cut: array[cut], batch))
        return parts[0] if len(parts) == 1 else keras.tree.map_structure(lambda *a: np.concatenate(a), *parts)

    def _read(self, index: int) -> Any:
        if self._latest is None or self._latest[0] != index:
            batch = self._dataset[index]
            batch = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
            self._latest = (index, keras.tree.map_structure(_array, batch))
        return self._latest[1]

    def on_epoch_end(self) -> None:
        """Pass it on to the data set, whose batches may change by it."""
        self._dataset.on_epoch_end()
        self._latest = None

    def on_epoch_begin(self) -> None:
        """Pass it on to the data set."""
        self._dataset.on_epoch_begin()


def _rows(batch: Any) -> int:
    return len(keras.tree.flatten(batch)[0])
