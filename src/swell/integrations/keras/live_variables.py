"""Reading and writing an optimizer's small variables while ``fit`` runs, on each backend.

On JAX the variables are empty during an epoch: ``fit`` passes their values from step to step. ``jax_state_sync`` puts
the values back, and the next step takes them out again. That costs a few microseconds a variable, once a global step.
"""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

from typing import Any

import keras
import numpy as np


def write(model: Any, variable: Any, value: Any) -> None:
    """Give the variable a value that the next pass sees."""
    if keras.backend.backend() == "jax":
        model.jax_state_sync()
    variable.assign(np.asarray(value))


def snapshot(model: Any, variable: Any) -> Any:
    """The variable's value as it is now, safe from later passes; it may still be computed when this returns."""
    backend = keras.backend.backend()
    if backend == "torch":
        return variable.value.detach().clone()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.identity(variable.value)
    import jax.numpy as jnp

    return jnp.copy(_current(model, variable))  # the next step reuses the original's buffer


def numbers(snapshot: Any) -> list[float]:
    """The numbers of a snapshot; waits for the device if it is still computing them."""
    return [float(number) for number in np.ravel(keras.ops.convert_to_numpy(snapshot))]


def _current(model: Any, variable: Any) -> Any:
    state = getattr(model, "_jax_state", None)
    if state is None or getattr(model, "_jax_state_synced", True):
        return variable.value
    index = next(i for i, known in enumerate(model.optimizer.variables) if known is variable)
    return state["optimizer_variables"][index]
