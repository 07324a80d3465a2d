"""The slow, obvious twin of every probe: keep each micro-gradient whole, and apply the formulas to them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def signal_and_noise(micro_gradients: Sequence[Tensor], sizes: Sequence[float], *, batch: float) -> tuple[float, float]:
    """|G|^2 and tr(Sigma) from the micro-batches' mean gradients, each one long vector; ``sizes`` are their weights."""
    weights = [size / sum(sizes) for size in sizes]
    mean = sum(w * g for w, g in zip(weights, micro_gradients, strict=True))
    assert isinstance(mean, Tensor)
    count = len(sizes)
    a = sum(w * float(g @ g) for w, g in zip(weights, micro_gradients, strict=True))
    n = float(mean @ mean)
    return (count * n - a) / (count - 1), batch * (a - n) / (count - 1)


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """All entries in one vector."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])
