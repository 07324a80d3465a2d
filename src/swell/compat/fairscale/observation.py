"""What one step's gradients say about signal and noise, in FairScale's unit: the base batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from swell.core.moments import consecutive_differences, estimate
from swell.core.types import Moments


@dataclass(slots=True)
class MicroGradientObservation:
    """Squared norms of one step's micro-gradients by group, on the device until ``moments`` reads them."""

    small: Tensor  # sum of the micro-gradients' squared norms, as measured by hooks
    big: Tensor  # squared norm of the averaged gradient, as it was in .grad
    count: int  # micro-gradients, over all replicas
    small_factor: float  # turns measured norms into those of mean gradients
    big_factor: float
    scale: float  # the step's batch in base batches

    def unscale(self, scale: float) -> None:
        """Take a loss scale out of the figures."""
        self.small_factor /= scale**2
        self.big_factor /= scale**2

    def moments(self) -> list[Moments]:
        """Signal and noise of each group; a base batch counts as one sample, so the step has ``scale`` samples."""
        return [
            estimate(small * self.small_factor / self.count, big * self.big_factor, count=self.count, batch=self.scale)
            for small, big in zip(*_read(self.small, self.big), strict=True)
        ]


@dataclass(slots=True)
class PairObservation:
    """Squared norms and product of two consecutive steps' gradients by group, on the device until read."""

    first: Tensor
    second: Tensor
    product: Tensor
    scale: float  # the step's batch in base batches
    loss_scale: float = 1.0  # of the second gradient

    def unscale(self, scale: float) -> None:
        """Take a loss scale out of the figures."""
        self.loss_scale *= scale

    def moments(self) -> list[Moments]:
        """Signal and noise of each group, biased by how far the optimizer moved between the two steps."""
        return [
            consecutive_differences(first, second / self.loss_scale**2, product / self.loss_scale, batch=self.scale)
            for first, second, product in zip(*_read(self.first, self.second, self.product), strict=True)
        ]


def _read(*figures: Tensor) -> list[list[float]]:
    """The figures as plain numbers, read from the device at once."""
    return torch.stack([each.to(figures[0]) for each in figures]).tolist()
