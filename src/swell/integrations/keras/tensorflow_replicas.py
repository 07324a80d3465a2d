"""One pass under ``tf.distribute``: the replicas' gradients are summed, then added once and kept equal everywhere."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

from typing import Any

import tensorflow as tf

from swell.integrations.keras.hyperparameters import scaled
from swell.integrations.keras.step_gradients import StepGradients


def add_across_replicas(step: StepGradients, gradients: list[Any], variables: list[Any]) -> None:
    """Add the sum of all replicas' gradients to the step.

    Keras divides a replica's loss by the number of replicas, so the sum is the pass's mean gradient if all replicas
    hold equally many samples. The inner optimizer sums over replicas once more. So only the first replica gives it the
    gradient and the others give zeros; clipping then sees what it would see on one device.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        step.add(gradients, variables, step.update)
    elif tf.__internal__.distribute.strategy_supports_no_merge_call():
        summed = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        step.add(list(summed), variables, lambda *arguments: _update(step, *arguments))
    else:
        context.merge_call(_merged, args=(step, gradients, variables))


def _merged(strategy: Any, step: StepGradients, gradients: list[Any], variables: list[Any]) -> None:
    """In a cross-replica context: only here may a branch of a condition update variables."""
    targets = [v.value if hasattr(v, "value") else v for v in variables]
    pairs = list(zip(gradients, targets, strict=True))
    summed = strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)
    first = [strategy.experimental_local_results(value)[0] for value in summed]

    def update(sums: list[Any], variables: list[Any], control: dict[str, Any]) -> None:
        # Replicas are threads that wait for one another inside the update, so the factors surround all of them.
        with _factors(step, control):
            strategy.extended.call_for_each_replica(_apply, args=(step, sums, variables))

    step.add(first, variables, update)


def _update(step: StepGradients, sums: list[Any], variables: list[Any], control: dict[str, Any]) -> None:
    with _factors(step, control):
        _apply(step, sums, variables)


def _factors(step: StepGradients, control: dict[str, Any]) -> Any:
    return scaled(step.inner, control, step.moved, step.inner.iterations)


def _apply(step: StepGradients, sums: list[Any], variables: list[Any]) -> None:
    values = [tf.convert_to_tensor(s.value) for s in sums]
    step.measure(values, variables)
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    is_first = tf.cast(tf.equal(replica, 0), values[0].dtype)
    step.inner.apply([value * tf.cast(is_first, value.dtype) for value in values], variables)
