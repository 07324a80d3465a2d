"""Optimizers that update once every ``steps`` batches with the mean of their gradients, on every backend."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from swell.integrations.keras import ElasticOptimizer


def Optimizer(optimizer: Any, steps: int) -> ElasticOptimizer:
    """The optimizer, with its own state, updating once for every ``steps`` batches of equal size.

    Schedules and Adam's bias correction count updates, not batches. Batches left over at the end of training are not
    applied, as in Run:AI's; ``swell.keras.Elastic`` applies them, weighs uneven batches, and may change the number.
    """
    return ElasticOptimizer(optimizer, measured=False, steps=steps)


def _ready_made(kind: type) -> Callable[..., ElasticOptimizer]:
    def make(steps: int, *args: Any, **kwargs: Any) -> ElasticOptimizer:
        return Optimizer(kind(*args, **kwargs), steps)

    make.__name__ = make.__qualname__ = kind.__name__
    make.__doc__ = f"``keras.optimizers.{kind.__name__}`` that updates once every ``steps`` batches."
    return make


SGD = _ready_made(keras.optimizers.SGD)
RMSprop = _ready_made(keras.optimizers.RMSprop)
Adagrad = _ready_made(keras.optimizers.Adagrad)
Adadelta = _ready_made(keras.optimizers.Adadelta)
Adam = _ready_made(keras.optimizers.Adam)
Adamax = _ready_made(keras.optimizers.Adamax)
Nadam = _ready_made(keras.optimizers.Nadam)
