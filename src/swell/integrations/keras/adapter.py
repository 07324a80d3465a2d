"""What ``model.fit`` reads: the passes of each step as they are planned, on every backend."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

# Keras takes a data adapter as `x` ("allow passing a custom data adapter") but does not export its class. No other kind
# of data may have epochs of different lengths. It is used in this file alone.
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from swell.integrations.keras.refusals import refuse_unused
from swell.integrations.keras.sources import Source
from swell.integrations.keras.step_sequence import StepSequence


class ElasticData(DataAdapter):
    """Gives ``fit`` one pass after another; an epoch ends when its samples do, not after a number of passes."""

    def __init__(self, source: Source, steps: StepSequence, optimizer: Any, prepare: Callable[[], None]) -> None:
        self.source = source
        self._steps, self._optimizer, self._prepare = steps, optimizer, prepare

    def _batches(self) -> Iterator[Any]:
        self._prepare()
        token = self._steps.attach()
        while (step := self._steps.step_to_read(token)) is not None:
            for one in step.passes:
                batch = self.source.take(step.epoch, step.start + one.offset, step.start + one.offset + one.size)
                if one.repeated > 1:
                    times = one.repeated
                    batch = keras.tree.map_structure(lambda array, n=times: np.repeat(array, n, axis=0), batch)
                yield batch

    def get_numpy_iterator(self) -> Iterator[Any]:
        return self._batches()

    def get_jax_iterator(self) -> Iterator[Any]:
        return self._batches()

    def get_tf_dataset(self) -> Any:
        from swell.integrations.keras.tensorflow_data import TensorFlowData

        return TensorFlowData(self._batches, self._optimizer._distribution_strategy, lambda: self._steps.is_training)

    def get_torch_dataloader(self) -> Any:
        return _TorchData(self._batches)

    @property
    def num_batches(self) -> int:
        """More than an epoch can have: the number is known when the epoch is over. Keras asks for it first of all."""
        refuse_unused(sys._getframe(1))
        return self.source.length * self._steps.planner.grid.devices + 1

    @property
    def batch_size(self) -> None:
        return None

    @property
    def has_partial_batch(self) -> bool:
        return False

    @property
    def partial_batch_size(self) -> None:
        return None

    def on_epoch_begin(self) -> None:
        getattr(self.source, "on_epoch_begin", lambda: None)()

    def on_epoch_end(self) -> None:
        getattr(self.source, "on_epoch_end", lambda: None)()


class _TorchData:
    """An iterable that puts each pass on torch's device."""

    def __init__(self, batches: Callable[[], Iterator[Any]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches():
            yield keras.tree.map_structure(keras.ops.convert_to_tensor, batch)
