"""The slow, obvious twin of a gradient sum: every micro-gradient is kept whole and dense, and added up at the end."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Gradients = Sequence[Tensor | None]  # one a parameter; None where the micro-batch did not use it


def total(micro_gradients: Sequence[Gradients], index: int) -> Tensor | None:
    """The sum of one parameter's gradients over all micro-batches that used it; None where none did."""
    present = [gradients[index] for gradients in micro_gradients]
    dense = [gradient.to_dense() for gradient in present if gradient is not None]
    return torch.stack(dense).sum(0) if dense else None


def squared_norm(gradients: Gradients) -> float:
    """The squared length of all gradients as one long vector, in float64."""
    return sum(float(gradient.to_dense().double().square().sum()) for gradient in gradients if gradient is not None)


def small_squares(
    micro_gradients: Sequence[Gradients], weights: Sequence[float], sizes: Sequence[int]
) -> list[float] | None:
    """The sum of ``|m g|^2 / m`` over micro-batches of weight ``m > 0``, for parameter groups of these sizes."""
    weighted = [(g, w) for g, w in zip(micro_gradients, weights, strict=True) if w > 0]
    if not weighted:
        return None
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    return [
        sum(squared_norm(gradients[end - size : end]) / weight for gradients, weight in weighted)
        for end, size in zip(ends, sizes, strict=True)
    ]
