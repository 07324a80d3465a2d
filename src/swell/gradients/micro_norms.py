"""Norms of one step's micro-gradients, and the sum of squares that the noise is measured by."""

from __future__ import annotations

import torch
from torch import Tensor

from swell.gradients.norms import Norms, squares_of


class MicroNorms:
    """The norms in one metric, each with the weight ``m_j`` that its loss had in the step.

    The figure of each parameter group is the sum over micro-batches of ``|m_j g_j|^2 / m_j``.
    """

    def __init__(self) -> None:
        self._norms: list[tuple[Norms, float]] = []

    def add(self, norms: Norms, weight: float) -> None:
        """Take in a micro-gradient ``m_j g_j``."""
        self._norms.append((norms, weight))

    def squares(self) -> Tensor | None:
        """The figures, on the device; None if nothing was measured."""
        if not self._norms:
            return None
        squares = [squares_of(norms) for norms, _ in self._norms]
        return torch.stack(torch._foreach_mul(squares, [1 / weight for _, weight in self._norms])).sum(0)

    def terms(self, groups: int) -> list[list[tuple[Tensor, float]]]:
        """What each figure is the sum of: norms whose squares count with these weights."""
        return [
            [(part, 1 / weight) for norms, weight in self._norms for part in norms[group]] for group in range(groups)
        ]
