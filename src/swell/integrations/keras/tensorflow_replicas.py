"""One pass under ``tf.distribute``: the replicas' gradients are summed, then taken once and kept alike everywhere."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

from typing import Any

import tensorflow as tf

from swell.integrations.keras.hyperparameters import scaled


def across_replicas(optimizer: Any, gradients: list[Any], variables: list[Any]) -> None:
    """Let ``optimizer`` take the sum of all replicas' gradients.

    Keras divides a replica's loss by the number of replicas, so the sum is the pass's mean gradient where all hold
    equally many samples. The inner optimizer sums over replicas once more; only the first hands it the gradient then,
    the others hand it zeros, so that clipping too sees what one device would.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        optimizer.take(gradients, variables, optimizer.update)
    elif tf.__internal__.distribute.strategy_supports_no_merge_call():
        summed = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        optimizer.take(list(summed), variables, lambda *parts: _update(optimizer, *parts))
    else:
        context.merge_call(_merged, args=(optimizer, gradients, variables))


def _merged(strategy: Any, optimizer: Any, gradients: list[Any], variables: list[Any]) -> None:
    """In a cross-replica context: a condition whose branch updates variables is allowed only here."""
    targets = [v.value if hasattr(v, "value") else v for v in variables]
    pairs = list(zip(gradients, targets, strict=True))
    summed = strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)
    first = [strategy.experimental_local_results(value)[0] for value in summed]

    def update(sums: list[Any], variables: list[Any], told: dict[str, Any]) -> None:
        # Replicas are threads that wait for one another inside the update, so the factors are held around all of them.
        with _factors(optimizer, told):
            strategy.extended.call_for_each_replica(_apply, args=(optimizer, sums, variables))

    optimizer.take(first, variables, update)


def _update(optimizer: Any, sums: list[Any], variables: list[Any], told: dict[str, Any]) -> None:
    with _factors(optimizer, told):
        _apply(optimizer, sums, variables)


def _factors(optimizer: Any, told: dict[str, Any]) -> Any:
    return scaled(optimizer.inner, told, optimizer.moving, optimizer.inner.iterations)


def _apply(optimizer: Any, sums: list[Any], variables: list[Any]) -> None:
    values = [tf.convert_to_tensor(s.value) for s in sums]
    if optimizer.measured:
        optimizer.measure(values, variables)
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    mine = tf.cast(tf.equal(replica, 0), values[0].dtype)
    optimizer.inner.apply([value * tf.cast(mine, value.dtype) for value in values], variables)
