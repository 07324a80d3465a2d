"""Gradients in Adam's own metric, by the second moment frozen from the step before."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

SECOND_MOMENTS = ("exp_avg_sq", "square_avg", "sum")  # Adam and its kin, RMSprop and Adadelta, Adagrad
WARM_UP_STEPS = 5  # before, the second moment says too little


def has_second_moment(optimizer: Optimizer) -> bool:
    """Whether the optimizer keeps a running second moment by which gradients can be preconditioned."""
    return any(key in state for state in optimizer.state.values() for key in SECOND_MOMENTS if isinstance(state, dict))


def precondition(
    optimizer: Optimizer, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Each gradient divided by ``sqrt(v) + eps`` with ``v`` bias-corrected; unchanged where there is no ``v`` yet.

    The second moment is the one before this step, so micro-gradients and their mean share one metric and the
    estimators stay unbiased. Reference: AdaptDL's AdamGradientNoiseScale; DESIGN's moments.
    """
    group_of = {p: group for group in optimizer.param_groups for p in group["params"]}
    result: list[Tensor | None] = []
    for parameter, gradient in zip(parameters, gradients, strict=True):
        state = optimizer.state.get(parameter, {})
        key = next((k for k in SECOND_MOMENTS if k in state), None)
        if gradient is None or key is None or gradient.is_sparse or float(state.get("step", 0)) < WARM_UP_STEPS:
            result.append(gradient)
            continue
        group = group_of[parameter]
        second = state[key]
        if key == "exp_avg_sq" and "betas" in group:
            second = second / (1 - group["betas"][1] ** float(state["step"]))
        eps = group.get("eps", 1e-8)
        scale = second.sqrt().add_(eps if isinstance(eps, (int, float)) else 1e-8)
        result.append(gradient.to(scale.dtype) / scale)
    return result


def is_warm(optimizer: Optimizer) -> bool:
    """Whether every second moment is past its warm-up, so that preconditioned figures mean one thing."""
    states = [s for s in optimizer.state.values() if isinstance(s, dict) and any(k in s for k in SECOND_MOMENTS)]
    return bool(states) and all(float(torch.as_tensor(s.get("step", 0))) >= WARM_UP_STEPS for s in states)
