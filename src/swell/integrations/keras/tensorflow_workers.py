"""TensorFlow in several processes, by ``MultiWorkerMirroredStrategy``: one clock, one writer, one training function."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


class TensorFlowWorkers:
    """The processes that train one model together; each computes its part of every pass."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self.chief = bool(strategy.extended.should_checkpoint)

        def mine(number: Any) -> Any:
            context = tf.distribute.get_replica_context()
            place = tf.one_hot(context.replica_id_in_sync_group, context.num_replicas_in_sync, dtype=number.dtype)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, place * number)

        def gathered(number: Any) -> Any:
            return strategy.run(mine, args=(number,))

        self._gathered = tf.function(gathered, autograph=False)  # traced once

    def numbers(self, number: float) -> list[float]:
        """What each device's process gives, alike on all; every process has to ask."""
        found = self._gathered(tf.constant(number, tf.float64))
        return [float(one) for one in self._strategy.experimental_local_results(found)[0].numpy()]

    def train_function(self, model: Any) -> Callable[[Any], Any]:
        """One pass over all processes, as Keras's own but for the metrics: they are averaged as the numbers they are.

        Keras 3.15 averages them over an axis that they have not (``reduce_per_replica``), and its ``fit`` fails with
        this strategy; where that is mended this function may go.
        """
        strategy = self._strategy

        def one_pass(data: Any) -> Any:
            outputs = strategy.run(model.train_step, args=(data,))
            return keras.tree.map_structure(lambda value: strategy.reduce("MEAN", value, axis=None), outputs)

        if not model.run_eagerly:
            one_pass = tf.function(one_pass, reduce_retracing=True, jit_compile=model.jit_compile, autograph=False)
        return lambda iterator: one_pass(next(iterator))


def workers(strategy: Any) -> TensorFlowWorkers | None:
    """The processes of a strategy, where there is more than one."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return None
    return TensorFlowWorkers(strategy) if strategy.cluster_resolver.cluster_spec().as_dict() else None
