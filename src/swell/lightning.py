"""Lightning and Fabric: ``swell.lightning.Strategy``, the public name of ``swell.integrations.lightning``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swell.integrations import lightning as _home

__all__ = ["Strategy"]


def __getattr__(name: str) -> Any:
    return getattr(_home, name)


if TYPE_CHECKING:
    from swell.integrations.lightning import Strategy
