"""No scaling: the baseline every other rule is measured against."""

from __future__ import annotations

from dataclasses import dataclass

from swell.core.types import Factors, ScaleState


@dataclass(frozen=True, slots=True)
class Constant:
    """Hyper-parameters as the user set them, at any batch size.

    A step is worth one base step whatever its batch. Larger batches are safe and mostly wasted; smaller ones train with
    too large a learning rate if the base batch is near the noise scale.

    >>> Constant().factors(ScaleState(scale=8.0, base_batch=32)).lr
    1.0
    """

    def factors(self, state: ScaleState) -> Factors:
        return Factors()

    def gain(self, state: ScaleState) -> float:
        return 1.0
