"""Consecutive steps compared in pairs, for one worker without accumulation."""

from __future__ import annotations

import torch
from torch import Tensor

from swell.compat.fairscale.micro_gradients import MicroGradients, stacked
from swell.compat.fairscale.observation import PairObservation


class StepPairs:
    """Compares every second step's gradient with the one before it; each gradient is in one pair only."""

    def __init__(self) -> None:
        self._first: list[Tensor | None] | None = None
        self._candidate: list[Tensor | None] | None = None  # becomes the first of a pair if the step is taken

    def observe(self, gradients: MicroGradients, *, scale: float) -> PairObservation | None:
        """The pair that the gradients in ``.grad`` complete; None if they are the first of a pair."""
        second = [parameter.grad for parameter in gradients.parameters]
        if self._first is None:
            self._candidate = [None if g is None else g.detach().clone() for g in second]
            return None
        self._candidate = None
        squares = gradients.big_squares()
        both = [
            (index, (a * b).sum())
            for index, (a, b) in enumerate(zip(self._first, second, strict=True))
            if a is not None and b is not None
        ]
        indices, products = zip(*both, strict=True) if both else ((), ())
        product = gradients.by_group(indices, stacked(products)) if both else torch.zeros_like(squares)
        return PairObservation(first=gradients.norms.squares(self._first), second=squares, product=product, scale=scale)

    def unscale(self, scale: float) -> None:
        """Take a loss scale out of the gradient of this step."""
        if self._candidate is not None:
            torch._foreach_mul_([g for g in self._candidate if g is not None], 1 / scale)

    def commit(self) -> None:
        """The step was taken: it was the first of a pair, or completed one."""
        self._first, self._candidate = self._candidate, None
