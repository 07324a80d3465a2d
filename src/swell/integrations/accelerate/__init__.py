"""Hugging Face's Accelerate: the loop stays as it is, the job behind it has the batch, the gradients and the data.

``import swell.accelerate`` is the same. Accelerate itself is imported when a name of this package is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swell.integrations.lazy import on_first_use

__all__ = ["Accelerator"]


__getattr__ = on_first_use(
    __name__,
    {"Accelerator": "accelerator"},
    needs={"accelerate": "accelerate"},
    hint=("expected it for swell.accelerate.{name}. Run pip install '.[accelerate]' in a checkout of swell."),
)


if TYPE_CHECKING:
    from swell.integrations.accelerate.accelerator import Accelerator
