"""Passes as TensorFlow's ``fit`` reads them: one after another, each device of this process with its own samples.

A ``tf.data`` pipeline round a Python generator was tried instead. It made steps up to a tenth slower, and in several
processes Keras 3.15 cannot start to train on one, because it averages the first batch as if it were one tensor.
"""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf


class TensorFlowData(tf.distribute.DistributedDataset):
    """Makes a new iterator whenever Keras asks for one; it is spread over devices already, so Keras leaves it alone."""

    def __init__(self, batches: Callable[[], Iterator[Any]], strategy: Any, is_training: Callable[[], bool]) -> None:
        self._batches, self._strategy, self._is_training = batches, strategy, is_training

    def __iter__(self) -> Iterator[Any]:
        return _DeviceSlices(self._batches(), self._strategy, self._is_training)

    @property
    def element_spec(self) -> Any:
        """Unknown until a pass is read; Keras does not ask."""
        return None


class _DeviceSlices:
    def __init__(self, batches: Iterator[Any], strategy: Any, is_training: Callable[[], bool]) -> None:
        self._batches, self._strategy, self._is_training = batches, strategy, is_training

    def __iter__(self) -> _DeviceSlices:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches, None)
        if batch is None:
            raise tf.errors.OutOfRangeError(None, None, "the epoch is over")  # a StopIteration would be swallowed
        # Before it trains, Keras looks at one batch for its shapes; a whole one will do.
        if self._strategy.num_replicas_in_sync == 1 or not self._is_training():
            return keras.tree.map_structure(tf.convert_to_tensor, batch)
        return self._strategy.experimental_distribute_values_from_function(lambda context: _slice(batch, context))


def _slice(batch: Any, context: Any) -> Any:
    """One device's part of a pass, whose size is always a multiple of all devices of all processes."""

    def cut(array: Any) -> Any:
        size = len(array) // context.num_replicas_in_sync
        start = context.replica_id_in_sync_group * size
        return tf.convert_to_tensor(array[start : start + size])

    return keras.tree.map_structure(cut, batch)
