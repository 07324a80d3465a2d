"""TensorFlow in several processes, by ``MultiWorkerMirroredStrategy``: one clock, one writer, one training function."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf


class TensorFlowProcesses:
    """Processes that compute every pass together; the strategy keeps their variables equal and sums gradients."""

    count, rank = 1, 0

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self.chief = bool(strategy.extended.should_checkpoint)

        def of_one_device(number: Any) -> Any:
            context = tf.distribute.get_replica_context()
            place = tf.one_hot(context.replica_id_in_sync_group, context.num_replicas_in_sync, dtype=number.dtype)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, place * number)

        def of_all_devices(number: Any) -> Any:
            return strategy.run(of_one_device, args=(number,))

        self._gather = tf.function(of_all_devices, autograph=False)  # traced once

    def numbers(self, number: float) -> list[float]:
        gathered = self._gather(tf.constant(number, tf.float64))
        return [float(one) for one in self._strategy.experimental_local_results(gathered)[0].numpy()]

    def sum(self, tensors: Sequence[Any]) -> None:
        pass

    def broadcast(self, variables: Sequence[Any]) -> None:
        pass

    def average(self, variables: Sequence[Any]) -> None:
        pass

    def train_function(self, model: Any) -> Callable[[Any], Any]:
        """One pass over all processes. Metrics are averaged as the numbers they are, otherwise it is Keras's own.

        Keras 3.15 averages metrics over an axis that they do not have (``reduce_per_replica``), so its ``fit`` fails
        with this strategy. Once that is fixed, this function may go.
        """
        strategy = self._strategy

        def one_pass(data: Any) -> Any:
            outputs = strategy.run(model.train_step, args=(data,))
            return keras.tree.map_structure(lambda value: strategy.reduce("MEAN", value, axis=None), outputs)

        if not model.run_eagerly:
            one_pass = tf.function(one_pass, reduce_retracing=True, jit_compile=model.jit_compile, autograph=False)
        return lambda iterator: one_pass(next(iterator))


def tensorflow_processes(strategy: Any) -> TensorFlowProcesses | None:
    """The processes of a strategy; None if there is only one."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return None
    return TensorFlowProcesses(strategy) if strategy.cluster_resolver.cluster_spec().as_dict() else None
