"""Hugging Face Accelerate: ``swell.accelerate.Accelerator``, the public name of ``swell.integrations.accelerate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swell.integrations import accelerate as _home

__all__ = ["Accelerator"]


def __getattr__(name: str) -> Any:
    return getattr(_home, name)


if TYPE_CHECKING:
    from swell.integrations.accelerate import Accelerator
