"""Gradient accumulation for Keras: ``runai.ga.keras.optimizers``."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name == "optimizers":
        return importlib.import_module(f"{__name__}.optimizers")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
