"""A small model and data that every Keras test trains, and how one process trains it with whole batches."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

from typing import Any

import keras
import numpy as np

from swell.core.events import Event
from swell.core.order import Shuffled

BACKEND = keras.backend.backend()
LOSS = "sparse_categorical_crossentropy"


def data(samples: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(samples, 5)).astype(keras.config.floatx()), rng.integers(0, 3, size=samples)


def model(seed: int = 1) -> keras.Model:
    """Weights from numpy, so that they are the same on every backend."""
    rng = np.random.default_rng(seed)
    network = keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    network.set_weights([rng.normal(size=w.shape) * 0.5 for w in network.weights])
    return network


def loss() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy()


def train_whole(network, optimizer, x, y, sizes, *, seed: int = 0, epochs: int = 1, callbacks=()) -> list[np.ndarray]:
    """One update a batch, each batch whole: what swell must equal. ``sizes`` is one size or one for each step."""
    network.compile(optimizer=optimizer, loss=loss())
    step = 0
    for epoch in range(epochs):
        order = Shuffled(len(x), seed=seed, epoch=epoch).indices(0, len(x))
        start = 0
        while start < len(x):
            size = sizes if isinstance(sizes, int) else sizes[min(step, len(sizes) - 1)]
            rows = order[start : start + size]
            network.train_on_batch(x[rows], y[rows])
            start, step = start + size, step + 1
    return network.get_weights()


def difference(a, b) -> float:
    """The largest difference relative to the largest weight."""
    scale = max(float(np.abs(w).max()) for w in b)
    return max(float(np.abs(u - v).max()) for u, v in zip(a, b, strict=True)) / scale


class Heard:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        pass
