"""FairScale's AdaScale: ``import swell.compat.fairscale as fairscale``, then ``fairscale.optim.AdaScale``.

``from swell.compat.fairscale.optim import AdaScale, AdaScaleWrapper`` and
``from swell.compat.fairscale.optim.adascale import AdaScale`` work too. torch is imported when ``optim`` is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swell.compat.fairscale import optim

__all__ = ["optim"]


def __getattr__(name: str) -> Any:
    if name == "optim":
        return importlib.import_module(f"{__name__}.optim")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; expected optim.")
