"""What torch does with gradients: the weighted addition and the squared norm, in one call each, never compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def eagerly(function: Callable[..., None], *arguments: Any) -> None:
    """Call a function outside of any graph that ``jit_compile=True`` compiles.

    Weights and places are numbers of the host here; a graph would hold them as constants and be compiled again for
    each.
    """
    _outside(function, arguments)


def _call(function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    function(*arguments)


_outside: Any = torch.compiler.disable(_call)


@torch.no_grad()
def add(variables: list[Any], gradients: list[torch.Tensor], *, weight: float, first: bool) -> None:
    """Add ``weight`` times each gradient to its variable; the ``first`` of a step starts from zero."""
    sums = [variable.value for variable in variables]
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
