"""Hugging Face transformers: ``swell.transformers.Trainer``, the public name of ``swell.integrations.transformers``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swell.integrations import transformers as _home

__all__ = ["Elastic", "Figures", "Trainer"]


def __getattr__(name: str) -> Any:
    return getattr(_home, name)


if TYPE_CHECKING:
    from swell.integrations.transformers import Elastic, Figures, Trainer
