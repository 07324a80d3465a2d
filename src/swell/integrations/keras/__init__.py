"""Keras 3 on torch, jax and tensorflow: one global batch on any devices, which a policy moves and a rule follows.

``import swell.keras`` is the same. Keras itself is imported when a name of this package is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from swell.errors import DependencyError

_HOMES = {"Elastic": "elastic", "ElasticData": "adapter", "ElasticOptimizer": "optimizer"}

__all__ = ["Elastic", "ElasticData", "ElasticOptimizer"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
    try:
        importlib.import_module("keras")
    except ModuleNotFoundError as error:
        raise DependencyError(
            f"Keras is not installed ({error}); expected Keras 3 for {name}. Run pip install '.[keras]' in a checkout "
            "of swell, and install one of torch, jax or tensorflow."
        ) from error
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


if TYPE_CHECKING:
    from swell.integrations.keras.adapter import ElasticData
    from swell.integrations.keras.elastic import Elastic
    from swell.integrations.keras.optimizer import ElasticOptimizer
