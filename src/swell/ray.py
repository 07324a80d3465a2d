"""Ray: ``swell.ray.Trainer`` and ``swell.ray.SaveBeforeResize``, the public names of ``swell.integrations.ray``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swell.integrations import ray as _home

__all__ = ["SaveBeforeResize", "Trainer"]


def __getattr__(name: str) -> Any:
    return getattr(_home, name)


if TYPE_CHECKING:
    from swell.integrations.ray import SaveBeforeResize, Trainer
