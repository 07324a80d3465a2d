"""The two sums over all gradients that torch does in one call each: the weighted addition and the squared norm."""

from __future__ import annotations

from typing import Any

import torch


@torch.no_grad()
def add(held: list[Any], gradients: list[torch.Tensor], *, weight: float, first: bool) -> None:
    """Add ``weight`` times each gradient to the variable held for it; ``first`` begins anew."""
    sums = [variable.value for variable in held]
    if first:
        torch._foreach_zero_(sums)
    torch._foreach_add_(sums, gradients, alpha=weight)


@torch.no_grad()
def squared_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """The squared norm of all gradients together."""
    norms = torch.stack(list(torch._foreach_norm(gradients, dtype=_wide(gradients[0].dtype))))
    return norms.square().sum()


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype.itemsize < 4 else dtype
