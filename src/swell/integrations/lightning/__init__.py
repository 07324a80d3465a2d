"""Lightning's Trainer and Fabric: one strategy that keeps the global batch on any workers, and lets a policy move it.

``import swell.lightning`` is the same. Lightning itself is imported when a name of this package is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from swell.errors import DependencyError

__all__ = ["Strategy"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
    try:
        importlib.import_module("lightning")
    except ModuleNotFoundError as error:
        raise DependencyError(
            f"Lightning is not installed ({error}); expected lightning 2.6 or newer for {name}. Run pip install "
            "'.[lightning]' in a checkout of swell."
        ) from error
    value = getattr(importlib.import_module(f"{__name__}.strategy"), name)
    globals()[name] = value
    return value


if TYPE_CHECKING:
    from swell.integrations.lightning.strategy import Strategy
