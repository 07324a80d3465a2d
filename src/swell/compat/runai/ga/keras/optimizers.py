"""Optimizers that update once every ``steps`` batches with the mean of their gradients, on every backend."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from swell.integrations.keras import ElasticOptimizer


def Optimizer(optimizer: Any, steps: int) -> ElasticOptimizer:
    """The optimizer, with its own state, updating once for every ``steps`` batches of equal size.

    Schedules and Adam's bias correction count updates, not batches. As in Run:AI's, batches left over at the end of
    training are not applied. ``swell.keras.Elastic`` applies them, weighs uneven batches, and can change ``steps``.
    """
    return ElasticOptimizer(optimizer, measured=False, steps=steps)


def _with_steps(kind: type) -> Callable[..., ElasticOptimizer]:
    def make(steps: int, *args: Any, **kwargs: Any) -> ElasticOptimizer:
        return Optimizer(kind(*args, **kwargs), steps)

    make.__name__ = make.__qualname__ = kind.__name__
    make.__doc__ = f"``keras.optimizers.{kind.__name__}`` that updates once every ``steps`` batches."
    return make


SGD = _with_steps(keras.optimizers.SGD)
RMSprop = _with_steps(keras.optimizers.RMSprop)
Adagrad = _with_steps(keras.optimizers.Adagrad)
Adadelta = _with_steps(keras.optimizers.Adadelta)
Adam = _with_steps(keras.optimizers.Adam)
Adamax = _with_steps(keras.optimizers.Adamax)
Nadam = _with_steps(keras.optimizers.Nadam)
