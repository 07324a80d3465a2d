"""The obvious twin of the Keras integration's figures: plain PyTorch, one sample group after another, no cleverness."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from swell.core.moment_average import RECENT, MomentAverage, window_of
from swell.core.order import Shuffled
from swell.core.types import Moments


def figures(
    weights: Sequence[np.ndarray],
    x: np.ndarray,
    y: np.ndarray,
    *,
    batch: int,
    micro: int,
    epochs: int,
    base: int,
    rate: float,
    adam: bool,
) -> tuple[list[np.ndarray], Moments, Moments | None]:
    """Train 5-8-3 with tanh and softmax; returns weights, moments, and moments in Adam's metric."""
    parameters = [torch.tensor(w, dtype=torch.float64, requires_grad=True) for w in weights]
    inputs, targets = torch.tensor(x, dtype=torch.float64), torch.tensor(y)
    first = [torch.zeros_like(p) for p in parameters]
    second = [torch.zeros_like(p) for p in parameters]
    window = window_of(epochs * len(x), base_batch=base)
    plain, metric = (MomentAverage(window=window, base_batch=base, share=RECENT) for _ in range(2))
    step = passed = 0  # samples since the last measured step
    for epoch in range(epochs):
        order = Shuffled(len(x), seed=0, epoch=epoch).indices(0, len(x))
        for start in range(0, len(x), batch):
            rows = order[start : start + batch]
            cuts = [rows[i : i + micro] for i in range(0, len(rows), micro)]
            gradients = [_gradient(parameters, inputs[cut], targets[cut]) for cut in cuts]
            parts = [len(cut) / len(rows) for cut in cuts]
            whole = [torch.zeros_like(p) for p in parameters]
            for w, g in zip(parts, gradients, strict=True):
                whole = [total + w * part for total, part in zip(whole, g, strict=True)]
            scale = [(v / (1 - 0.999**step)).sqrt() + 1e-7 if step else torch.ones_like(v) for v in second]
            passed += len(rows)
            if len(cuts) > 1:
                small = sum(w * _square(g) for w, g in zip(parts, gradients, strict=True))
                plain.update([(small, _square(whole))], count=len(cuts), batch=len(rows), samples_between=passed)
                if step >= 5 and adam:
                    in_metric = [[p / s for p, s in zip(g, scale, strict=True)] for g in [*gradients, whole]]
                    small = sum(w * _square(g) for w, g in zip(parts, in_metric[:-1], strict=True))
                    square = _square(in_metric[-1])
                    metric.update([(small, square)], count=len(cuts), batch=len(rows), samples_between=passed)
                passed = 0
            step += 1
            with torch.no_grad():
                for p, g, m, v in zip(parameters, whole, first, second, strict=True):
                    if not adam:
                        p -= rate * g
                        continue
                    m.mul_(0.9).add_(g, alpha=0.1)
                    v.mul_(0.999).add_(g * g, alpha=0.001)
                    p -= rate * (1 - 0.999**step) ** 0.5 / (1 - 0.9**step) * m / (v.sqrt() + 1e-7)
    estimates = plain.estimate(), metric.estimate()
    assert estimates[0] is not None
    return [p.detach().numpy() for p in parameters], estimates[0].total, estimates[1] and estimates[1].total


def _gradient(parameters: list[torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    hidden = torch.tanh(x @ parameters[0] + parameters[1])
    loss = torch.nn.functional.cross_entropy(hidden @ parameters[2] + parameters[3], y)
    return list(torch.autograd.grad(loss, parameters))


def _square(gradient: Sequence[torch.Tensor]) -> float:
    return sum(float((part * part).sum()) for part in gradient)
