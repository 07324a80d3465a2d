"""Hugging Face's own Trainer, on whatever workers there are."""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import transformers

from swell.integrations.transformers.elastic import Elastic

_Plain: Any = transformers.Trainer


class Trainer(Elastic, _Plain):
    """``transformers.Trainer`` with an exact global batch on any number of workers; arguments as :class:`Elastic`'s.

    trainer = swell.transformers.Trainer(model=model, args=args, train_dataset=data, batch=64)
    trainer.train()
    """

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
