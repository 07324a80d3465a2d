"""Hugging Face's Accelerate: the loop stays as it is, the job behind it has the batch, the gradients and the data.

``import swell.accelerate`` is the same. Accelerate itself is imported when a name of this package is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from swell.errors import DependencyError

__all__ = ["Accelerator"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
    try:
        importlib.import_module("accelerate")
    except ModuleNotFoundError as error:
        raise DependencyError(
            f"accelerate is not installed ({error}); expected it for swell.accelerate.{name}. Run "
            "pip install '.[accelerate]' in a checkout of swell."
        ) from error
    value = getattr(importlib.import_module(f"{__name__}.accelerator"), name)
    globals()[name] = value
    return value


if TYPE_CHECKING:
    from swell.integrations.accelerate.accelerator import Accelerator
