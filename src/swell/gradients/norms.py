"""Squared norms of gradients per parameter group, in a handful of kernels and without waiting for the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors  # one call where flattening each would take one a tensor

WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}  # norms of narrow types overflow or round
# Gradients with fewer elements than this are measured together on an accelerator, where calls cost more than a copy.
# On the CPU it is the other way round.
PACKED = 2**20

Norms = list[list[Tensor]]  # of pieces of a gradient, by parameter group
_Kind = tuple[list[int], int, torch.dtype | None]  # places in the list, elements below which to pack, type of norms


class GroupNorms:
    """Measures the gradients of a list of parameters, group by group.

    On an accelerator a group's small gradients are copied together and measured by one kernel, and its large ones by
    one call in place: a few calls however many parameters there are, and a few megabytes for a moment. The host never
    waits. On the CPU nothing is copied. Half-precision gradients are measured in float32.
    """

    def __init__(self, parameters: Sequence[Tensor], sizes: Sequence[int]) -> None:
        self._groups: list[list[_Kind]] = []
        start = 0
        for size in sizes:
            kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
            for index in range(start, start + size):
                kinds.setdefault((parameters[index].device, parameters[index].dtype), []).append(index)
            self._groups.append(
                [
                    (indices, 0 if device.type == "cpu" else PACKED, WIDE.get(dtype))
                    for (device, dtype), indices in kinds.items()
                ]
            )
            start += size

    def squares(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """The squared norm of each group's gradients, on the gradients' device; missing ones count as zero."""
        return squares_of(self.norms(gradients))

    def norms(self, gradients: Sequence[Tensor | None]) -> Norms:
        """For each group the norms of pieces of its gradients, whose squares add up to its squared norm."""
        return [self._group(gradients, kinds) for kinds in self._groups]

    def _group(self, gradients: Sequence[Tensor | None], kinds: list[_Kind]) -> list[Tensor]:
        parts: list[Tensor] = []
        for indices, packed, wide in kinds:
            small: list[Tensor] = []
            large: list[Tensor] = []
            for index in indices:
                gradient = gradients[index]
                if gradient is None:
                    continue
                if gradient.is_sparse:
                    gradient = gradient.coalesce().values()
                (small if gradient.numel() < packed else large).append(gradient)
            if small:
                large.append(_flatten_dense_tensors(small))
            if large:
                parts += torch._foreach_norm(large, 2, dtype=wide)  # type: ignore[call-overload]
        return parts


def squares_of(norms: Norms) -> Tensor:
    """The squared norm of each group, by ``GroupNorms.norms``, on their device."""
    device = next((part.device for parts in norms for part in parts), torch.device("cpu"))
    squares = [_sum_of_squares(parts) if parts else torch.zeros((), device=device) for parts in norms]
    return torch.stack([square.to(device) for square in squares])


def _sum_of_squares(parts: Sequence[Tensor]) -> Tensor:
    if len({(part.device, part.dtype) for part in parts}) > 1:
        parts = [part.to(parts[0].device, torch.float64) for part in parts]
    if len(parts) == 1:
        return parts[0] * parts[0]  # every training multiplies; a kernel for squares would have to be loaded first
    together = torch.stack(list(parts))
    return together.mul_(together).sum()


def squared_norm(gradients: Sequence[Tensor | None]) -> Tensor:
    """The squared norm of all gradients together."""
    present = [gradient for gradient in gradients if gradient is not None]
    return GroupNorms(present, [len(present)]).squares(present)[0]
