"""Hugging Face's Trainer, and through it TRL's: an exact global batch on any workers, which a policy moves.

``import swell.transformers`` is the same. transformers itself is imported when a name of this package is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swell.integrations.lazy import on_first_use

__all__ = ["Elastic", "Figures", "Trainer"]


__getattr__ = on_first_use(
    __name__,
    {"Trainer": "trainer", "Elastic": "elastic", "Figures": "figures"},
    needs={"transformers": "transformers", "accelerate": "accelerate"},
    hint=("expected it for swell.transformers.{name}. Run pip install '.[transformers]' in a checkout of swell."),
)


if TYPE_CHECKING:
    from swell.integrations.transformers.elastic import Elastic
    from swell.integrations.transformers.figures import Figures
    from swell.integrations.transformers.trainer import Trainer
