"""What one step's gradients say of signal and noise, in FairScale's unit: the base batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from swell.compat.fairscale.watch import GradientWatch, stacked
from swell.core.moments import consecutive_differences, estimate
from swell.core.types import Moments


@dataclass(slots=True)
class Observation:
    """Squared norms of one step's micro-gradients by group, still on the device; read when somebody asks."""

    small: Tensor  # sum of the micro-gradients' squared norms, as hooks saw them
    big: Tensor  # squared norm of the averaged gradient, as it was in .grad
    count: int  # micro-gradients, over all replicas
    small_factor: float  # what makes them those of mean gradients
    big_factor: float
    scale: float  # the step's batch in base batches

    def unscale(self, scale: float) -> None:
        """Take a loss scale out of the figures."""
        self.small_factor /= scale**2
        self.big_factor /= scale**2

    def moments(self) -> list[Moments]:
        """Signal and noise of each group; a sample is one base batch here, so that the step has ``scale`` of them."""
        return [
            estimate(small * self.small_factor / self.count, big * self.big_factor, count=self.count, batch=self.scale)
            for small, big in zip(*_read(self.small, self.big), strict=True)
        ]


@dataclass(slots=True)
class PairObservation:
    """Squared norms and product of two consecutive steps' gradients by group, still on the device."""

    before: Tensor
    now: Tensor
    dot: Tensor
    scale: float  # the step's batch in base batches
    loss_scale: float = 1.0  # of ``now``

    def unscale(self, scale: float) -> None:
        """Take a loss scale out of the figures."""
        self.loss_scale *= scale

    def moments(self) -> list[Moments]:
        """Signal and noise of each group, biased by how far the optimizer moved in between."""
        by = self.loss_scale
        return [
            consecutive_differences(before, now / by**2, dot / by, batch=self.scale)
            for before, now, dot in zip(*_read(self.before, self.now, self.dot), strict=True)
        ]


class Pairs:
    """Every second step's gradient against the one before it, each in one pair only."""

    def __init__(self) -> None:
        self._kept: list[Tensor | None] | None = None
        self._coming: list[Tensor | None] | None = None  # what is kept if the step is taken

    def observe(self, watch: GradientWatch, *, scale: float) -> PairObservation | None:
        """The pair that the gradients at hand complete; None where they begin one."""
        gradients = [parameter.grad for parameter in watch.parameters]
        if self._kept is None:
            self._coming = [None if g is None else g.detach().clone() for g in gradients]
            return None
        self._coming = None
        now = watch.big_squares()
        both = [
            (index, (before * gradient).sum())
            for index, (before, gradient) in enumerate(zip(self._kept, gradients, strict=True))
            if before is not None and gradient is not None
        ]
        indices, dots = zip(*both, strict=True) if both else ((), ())
        dot = watch.by_group(indices, stacked(dots)) if both else torch.zeros_like(now)
        return PairObservation(before=watch.norms.squares(self._kept), now=now, dot=dot, scale=scale)

    def unscale(self, scale: float) -> None:
        """Take a loss scale out of the gradient at hand."""
        if self._coming is not None:
            torch._foreach_mul_([g for g in self._coming if g is not None], 1 / scale)

    def commit(self) -> None:
        """The step was taken: a pair is used up, or begun."""
        self._kept, self._coming = self._coming, None


def _read(*figures: Tensor) -> list[list[float]]:
    """The figures in plain numbers, in one trip from the device."""
    return torch.stack([each.to(figures[0]) for each in figures]).tolist()
