"""Gradient accumulation around an optimizer: ``runai.ga.torch.optim`` and ``runai.ga.keras.optimizers``."""

from __future__ import annotations

import importlib
from typing import Any

FRAMEWORKS = ("torch", "keras")


def __getattr__(name: str) -> Any:
    if name in FRAMEWORKS:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
