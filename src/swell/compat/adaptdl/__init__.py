"""AdaptDL's interface on swell: ``import swell.compat.adaptdl as adaptdl``.

The user's loop stays as it is: ``loss.backward()``, ``optimizer.step()``, ``optimizer.zero_grad()``. Behind it one
:class:`swell.Job` chooses the batch, exchanges gradients, scales the learning rate and saves. docs/migrating/adaptdl.md
lists what differs from the original and why. Nothing happens at import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swell.compat.adaptdl import checkpoint, collective, env, goodput, torch
    from swell.compat.adaptdl.opening import close
    from swell.compat.adaptdl.trainer import AdaptDLTorchTrainer

__all__ = ["AdaptDLTorchTrainer", "checkpoint", "close", "collective", "env", "goodput", "torch"]

_HOMES = {"AdaptDLTorchTrainer": "trainer", "close": "opening"}
_MODULES = ("checkpoint", "collective", "env", "goodput", "torch")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; expected one of {', '.join(__all__)}.")


def __dir__() -> list[str]:
    return sorted(__all__)
