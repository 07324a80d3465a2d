"""How many devices and processes a Keras program spreads one pass over, on each backend."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

from typing import Any

import keras


def devices_in_scope() -> int:
    """Devices that a model made here and now would train on, in this process."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return int(tf.distribute.get_strategy().num_replicas_in_sync)
    return devices_of(None)


def devices_of(optimizer: Any) -> int:
    """Devices that share each pass in this program: 1, or those of a data-parallel distribution or strategy."""
    backend = keras.backend.backend()
    if backend == "jax":
        distribution = keras.distribution.distribution()
        if distribution is None or distribution.batch_dim_name is None:
            return 1
        mesh = distribution.device_mesh
        return int(mesh.shape[mesh.axis_names.index(distribution.batch_dim_name)])
    if backend == "tensorflow":
        return int(optimizer._distribution_strategy.num_replicas_in_sync)
    return 1


def processes() -> Any:
    """The other processes that train the same model on torch, each with a share of its own; None elsewhere or alone."""
    if keras.backend.backend() != "torch":
        return None
    from swell.integrations.keras.torch_world import world

    return world()


def workers_of(optimizer: Any) -> Any:
    """The processes that compute each pass together on TensorFlow; None elsewhere or alone."""
    if keras.backend.backend() != "tensorflow":
        return None
    from swell.integrations.keras.tensorflow_workers import workers

    return workers(optimizer._distribution_strategy)
