"""Hugging Face's Trainer, and through it TRL's: an exact global batch on any workers, which a policy moves.

``import swell.transformers`` is the same. transformers itself is imported when a name of this package is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from swell.errors import DependencyError

_HOMES = {"Trainer": "trainer", "Elastic": "elastic", "Figures": "figures"}

__all__ = ["Elastic", "Figures", "Trainer"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
    for package in ("transformers", "accelerate"):
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as error:
            raise DependencyError(
                f"{package} is not installed ({error}); expected it for swell.transformers.{name}. Run "
                "pip install '.[transformers]' in a checkout of swell."
            ) from error
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


if TYPE_CHECKING:
    from swell.integrations.transformers.elastic import Elastic
    from swell.integrations.transformers.figures import Figures
    from swell.integrations.transformers.trainer import Trainer
