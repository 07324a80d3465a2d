"""The slow, obvious twin of figures in a dual norm: singular value decompositions in float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def polar(matrix: Tensor) -> Tensor:
    """U V^T of the directions that the matrix has; zeros for a zero matrix."""
    u, s, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    return (u * (s > 1e-6 * s.max())) @ v


def direction(gradient: Tensor, norm: str) -> Tensor:
    """What a step by this gradient moves by."""
    wide = gradient.double()
    if norm == "nuclear" and wide.ndim > 1 and wide.numel():
        return polar(wide.reshape(len(wide), -1)).reshape(wide.shape)
    return wide.sign()


def dual_norm(gradient: Tensor, norm: str) -> float:
    return float((direction(gradient, norm) * gradient.double()).sum())


def reach_and_spread(first: Sequence[Tensor], second: Sequence[Tensor], norm: str) -> tuple[float, float]:
    """P and D of two lists of gradients."""
    reach = spread = 0.0
    for a, b in zip(first, second, strict=True):
        reach += float((direction(a, norm) * b + direction(b, norm) * a).sum()) / 2
        spread += dual_norm(a.double() - b.double(), norm)
    return reach, spread
