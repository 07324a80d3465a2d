"""Values of all replicas brought together, for loops over evaluation data."""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import torch
from accelerate.utils import recursively_apply

from swell.checkpoint.transfer import share_state
from swell.core.protocols import Collective


def gathered(data: Any, collective: Collective, *, counts: bool = True, as_objects: bool = False) -> Any:
    """Every replica's tensors, one after another in the first dimension; every replica calls it.

    A replica whose batch must not be counted says so with ``counts=False``. With ``as_objects`` lists are joined.
    """
    own = {"data": data, "counts": counts}
    parts = [share_state(own, collective=collective, source=rank) for rank in range(collective.size)]
    kept = [part["data"] for part in parts if part["counts"]]
    if as_objects:
        return [each for part in kept for each in (part if isinstance(part, (list, tuple)) else [part])]
    return _joined(kept)


def _joined(parts: list[Any]) -> Any:
    first = parts[0]
    if isinstance(first, torch.Tensor):
        return torch.cat([part.reshape(1) if part.ndim == 0 else part for part in parts])
    if isinstance(first, dict):
        return {name: _joined([part[name] for part in parts]) for name in first}
    return type(first)(_joined(list(column)) for column in zip(*parts, strict=True))


def reduced(data: Any, collective: Collective, *, mean: bool, scale: float) -> Any:
    """The sum or mean of every replica's tensors; every replica calls it."""

    def reduce(tensor: torch.Tensor) -> torch.Tensor:
        total = tensor.detach().clone()
        collective.sum_tensors([total])
        return total * scale / (collective.size if mean else 1) if mean or scale != 1 else total

    return recursively_apply(reduce, data, error_on_other_type=True)


def padded(data: Any, collective: Collective, *, dim: int, value: Any, first: bool) -> Any:
    """Tensors made as long in one dimension as the longest of all replicas; every replica calls it."""

    def pad(tensor: torch.Tensor) -> torch.Tensor:
        if dim >= tensor.ndim:
            return tensor
        length = int(max(row[0] for row in collective.gather_numbers([float(tensor.shape[dim])])))
        shape = list(tensor.shape)
        shape[dim] = length - tensor.shape[dim]
        more = tensor.new_full(shape, value)
        return torch.cat([more, tensor] if first else [tensor, more], dim=dim)

    return recursively_apply(pad, data, error_on_other_type=True)
