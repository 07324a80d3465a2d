"""Squared norms of gradients per parameter group, in a handful of kernels and without waiting for the device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}  # norms of narrow types overflow or round


def squared_norms(gradients: Sequence[Tensor | None], groups: Sequence[int], *, num_groups: int) -> Tensor:
    """The squared Euclidean norm of each group's gradients, one entry per group, on the gradients' device.

    ``groups[i]`` is the group of ``gradients[i]``; missing gradients count as zero. Half-precision gradients are
    measured in float32. Nothing is copied and the host never waits.
    """
    by_kind: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], list[int]]] = defaultdict(lambda: ([], []))
    for gradient, group in zip(gradients, groups, strict=True):
        if gradient is not None:
            dense = gradient.coalesce().values() if gradient.is_sparse else gradient
            tensors, owners = by_kind[dense.device, dense.dtype]
            tensors.append(dense)
            owners.append(group)
    total: Tensor | None = None
    for (device, dtype), (tensors, owners) in by_kind.items():
        norms = torch.stack(torch._foreach_norm(tensors, 2, dtype=WIDE.get(dtype)))  # type: ignore[call-overload]
        part = _sum_by_group(norms.square_(), owners, num_groups, device)
        total = part if total is None else total + part.to(total.device)
    return torch.zeros(num_groups) if total is None else total


def _sum_by_group(squares: Tensor, owners: list[int], num_groups: int, device: torch.device) -> Tensor:
    if num_groups == 1:
        return squares.sum().reshape(1)
    counts = [owners.count(group) for group in range(num_groups)]
    if owners == sorted(owners):  # parameters come group by group: one split, no index tensor to send to the device
        return torch.stack([part.sum() for part in squares.split(counts)])
    index = torch.tensor(owners, device=device)
    return squares.new_zeros(num_groups).index_add_(0, index, squares)
