"""FairScale's optimizers: ``AdaScale``, and ``AdaScaleWrapper``, which takes parameters as an optimizer does."""

from __future__ import annotations

from swell.compat.fairscale.optim.adascale import AdaScale, AdaScaleWrapper

__all__ = ["AdaScale", "AdaScaleWrapper"]
