"""How many devices share each pass of a Keras program, on each backend."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

from typing import Any

import keras

from swell.integrations.keras.device_grid import DeviceGrid
from swell.integrations.keras.processes import Processes


def grid_of(optimizer: Any, processes: Processes) -> DeviceGrid:
    """Where this optimizer's steps are computed now."""
    return DeviceGrid(processes=processes.count, rank=processes.rank, devices=devices_of(optimizer))


def devices_in_scope() -> int:
    """Devices of this process that a model made here and now would train on."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return int(tf.distribute.get_strategy().num_replicas_in_sync)
    return devices_of(None)


def devices_of(optimizer: Any) -> int:
    """Devices that share each pass: 1, or those of a data-parallel distribution or strategy."""
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
