"""Keras 3: ``swell.keras.Elastic``, the public name of ``swell.integrations.keras``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swell.integrations import keras as _home

__all__ = ["Elastic", "ElasticData", "ElasticOptimizer"]


def __getattr__(name: str) -> Any:
    return getattr(_home, name)


if TYPE_CHECKING:
    from swell.integrations.keras import Elastic, ElasticData, ElasticOptimizer
