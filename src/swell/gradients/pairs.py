"""Two consecutive steps compared, where a step is too small or too costly to be split: one gradient is kept."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from swell.gradients.gradient_sum import GradientSum
from swell.gradients.norms import WIDE


class GradientPairs:
    """Keeps the gradient of the first step of a pair until the second has its own, and compares the two.

    The steps are the small batches of :func:`swell.core.moments.estimate` with two of them: for gradients ``a`` and
    ``b`` of ``B`` samples each, ``A = (|a|^2 + |b|^2) / 2`` and ``N = |(a + b) / 2|^2`` of ``2 B`` samples are what
    :func:`swell.core.moments.consecutive_differences` is made of, with its bias. Each gradient is in one pair only, and
    both are measured in the metric of the second step. Costs one gradient's memory from a first step to its second.
    """

    def __init__(self, accumulator: GradientSum, half: Callable[[int], int]) -> None:
        self._accumulator, self._half = accumulator, half
        self.clear()

    def clear(self) -> None:
        """Forget the gradient that is kept."""
        self._kept: list[Tensor | None] = []
        self._next: tuple[int, int] | None = None  # where the second step begins, and its batch

    @torch.no_grad()
    def see(self, *, step: int, samples: int, batch: int, preconditioned: bool) -> Tensor | None:
        """Look at the gradient in ``.grad`` of a step of ``batch`` samples after ``samples``.

        Returns ``A`` by parameter group and then ``N``, each followed by the same in the optimizer's metric if wanted,
        where the step completes a pair; one that was broken off, resized or done again does not.
        """
        half, met = self._half(step), self._next == (samples, batch)
        kept = self._kept if half == 2 and met else []
        self.clear()
        gradients = [parameter.grad for parameter in self._accumulator.parameters]
        if half == 1:
            self._kept = [None if g is None else g.detach().clone() for g in gradients]
            self._next = (samples + batch, batch)
        if len(kept) != len(gradients) or not kept:
            return None
        squares = [self._squares(each, preconditioned) for each in (kept, gradients)]
        return torch.cat([(squares[0] + squares[1]) / 2, self._squares(_mean(kept, gradients), preconditioned)])

    def _squares(self, gradients: list[Tensor | None], preconditioned: bool) -> Tensor:
        norms, metric = self._accumulator.norms, self._accumulator.metric
        parts = [norms.squares(gradients)]
        if preconditioned:
            parts.append(norms.squares(metric.measurable(self._accumulator.parameters, gradients)))
        return torch.cat([part.double().to(parts[0].device) for part in parts])


def _mean(kept: list[Tensor | None], gradients: list[Tensor | None]) -> list[Tensor | None]:
    """The mean of two gradients, in the memory of the first where it can be; one that is missing counts as zero."""
    return [_half_sum(a, b) for a, b in zip(kept, gradients, strict=True)]


def _half_sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        one = a if b is None else b
        return None if one is None else one / 2
    if a.is_sparse != b.is_sparse:
        a, b = a.to_dense(), b.to_dense()
    if a.is_sparse or a.dtype in WIDE:
        return (a.to(WIDE.get(a.dtype, a.dtype)) + b) / 2
    return a.lerp_(b, 0.5)
