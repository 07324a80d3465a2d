"""Squared norms of gradients per parameter group, in a handful of kernels and without waiting for the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}  # norms of narrow types overflow or round


def norms(gradients: Sequence[Tensor | None]) -> Tensor:
    """The Euclidean norm of each gradient, zero where there is none, as one vector on the gradients' device.

    Half-precision gradients are measured in float32. Nothing is copied and the host never waits. Gradients of one type
    on one device take a fast path of two kernels.
    """
    dense = [g if g is None or not g.is_sparse else g.coalesce().values() for g in gradients]
    present = [g for g in dense if g is not None]
    if not present:
        return torch.zeros(len(gradients))
    first = present[0]
    if len(present) == len(dense) and all(g.dtype == first.dtype and g.device == first.device for g in present):
        return torch.stack(torch._foreach_norm(present, 2, dtype=WIDE.get(first.dtype)))  # type: ignore[call-overload]
    each = [
        first.new_zeros((), dtype=torch.float32)
        if g is None
        else torch.linalg.vector_norm(g, dtype=WIDE.get(g.dtype)).to(first.device)
        for g in dense
    ]
    return torch.stack(each)


def by_group(squares: Tensor, sizes: Sequence[int]) -> Tensor:
    """Sums of a vector over consecutive groups of ``sizes`` entries."""
    if len(sizes) == 1:
        return squares.sum().reshape(1)
    return torch.stack([part.sum() for part in squares.split(list(sizes))])


def squared_norms(gradients: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor:
    """The squared norm of each group's gradients; ``sizes`` is how many consecutive gradients each group has."""
    return by_group(norms(gradients).square(), sizes)
