"""Keras 3 on torch, jax and tensorflow: one global batch on any devices, which a policy moves and a rule follows.

``import swell.keras`` is the same. Keras itself is imported when a name of this package is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swell.integrations.lazy import on_first_use

__all__ = ["Elastic", "ElasticData", "ElasticOptimizer"]


__getattr__ = on_first_use(
    __name__,
    {"Elastic": "elastic", "ElasticData": "adapter", "ElasticOptimizer": "optimizer"},
    needs={"keras": "Keras"},
    hint=(
        "expected Keras 3 for {name}. Run pip install '.[keras]' in a checkout of swell, and "
        "install one of torch, jax or tensorflow."
    ),
)


if TYPE_CHECKING:
    from swell.integrations.keras.adapter import ElasticData
    from swell.integrations.keras.elastic import Elastic
    from swell.integrations.keras.optimizer import ElasticOptimizer
