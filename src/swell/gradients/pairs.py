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

    def __init__(self, gradients: GradientSum, half_of: Callable[[int], int]) -> None:
        self._gradients, self._half_of = gradients, half_of
        self.clear()

    def clear(self) -> None:
        """Forget the first gradient of a pair."""
        self._first: list[Tensor | None] = []
        self._second: tuple[int, int] | None = None  # where the second step must start, and its batch

    @torch.no_grad()
    def see(self, *, step: int, samples: int, batch: int, preconditioned: bool) -> Tensor | None:
        """Look at the gradient in ``.grad`` of a step of ``batch`` samples after ``samples``.

        Where the step completes a pair, returns ``A`` by parameter group and then ``N``, each followed by the same in
        the optimizer's metric if ``preconditioned``. A step that was broken off, resized or repeated completes none.
        """
        half, follows = self._half_of(step), self._second == (samples, batch)
        first = self._first if half == 2 and follows else []
        self.clear()
        gradients = [parameter.grad for parameter in self._gradients.parameters]
        if half == 1:
            self._first = [None if gradient is None else gradient.detach().clone() for gradient in gradients]
            self._second = (samples + batch, batch)
        if len(first) != len(gradients) or not first:
            return None
        squares = [self._squares(each, preconditioned) for each in (first, gradients)]
        return torch.cat([(squares[0] + squares[1]) / 2, self._squares(_mean(first, gradients), preconditioned)])

    def _squares(self, gradients: list[Tensor | None], preconditioned: bool) -> Tensor:
        norms, parameters = self._gradients.norms, self._gradients.parameters
        parts = [norms.squares(gradients)]
        if preconditioned:
            parts.append(norms.squares(self._gradients.preconditioner.norm_proxies(parameters, gradients)))
        return torch.cat([part.double().to(parts[0].device) for part in parts])


def _mean(first: list[Tensor | None], second: list[Tensor | None]) -> list[Tensor | None]:
    """The mean of two gradients, in the memory of the first where possible; a missing one counts as zero."""
    return [_half_sum(a, b) for a, b in zip(first, second, strict=True)]


def _half_sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        one = a if b is None else b
        return None if one is None else one / 2
    if a.is_sparse != b.is_sparse:
        a, b = a.to_dense(), b.to_dense()
    if a.is_sparse or a.dtype in WIDE:
        return (a.to(WIDE.get(a.dtype, a.dtype)) + b) / 2
    return a.lerp_(b, 0.5)
