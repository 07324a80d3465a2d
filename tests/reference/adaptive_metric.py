"""Gradients in an adaptive optimizer's own metric, by the formulas of its documentation, one parameter at a time."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def divided(gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
    """``g / (sqrt(v) + eps)``; only Adam and its kin start ``v`` from zero and correct for it."""
    if "exp_avg_sq" in state:
        second = state["exp_avg_sq"] / (1 - group["betas"][1] ** float(state["step"]))
    elif "square_avg" in state:
        second = state["square_avg"]
    else:
        second = state["sum"]
    return gradient / (second.sqrt() + group["eps"])
