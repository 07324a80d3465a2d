"""The step-time law one step at a time, term by term as it is written in the paper."""

from __future__ import annotations

from swell.core.step_time import Params


def step_seconds(params: Params, *, replicas: int, nodes: int, micro_batch: float, accumulation: int) -> float:
    computing = params.alpha_c + params.beta_c * micro_batch
    if replicas == 1:
        return accumulation * computing + params.alpha_s
    alpha, beta = (params.alpha_n, params.beta_n) if nodes > 1 else (params.alpha_r, params.beta_r)
    network = alpha + beta * max(replicas - 2, 0)
    gamma = params.gamma
    last = (computing**gamma + network**gamma) ** (1 / gamma)
    return (accumulation - 1) * computing + last + params.alpha_s
