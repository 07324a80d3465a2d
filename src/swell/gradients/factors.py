"""A rule's factors on an optimizer for one step; afterwards its base values are back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from swell.core.types import Factors
from swell.rules.bias_correction import effective_step

CHANGED = ("lr", "betas", "alpha", "rho", "momentum", "eps", "weight_decay")


@contextmanager
def scaled(optimizer: Optimizer, factors: Sequence[Factors], clock: BiasClock) -> Iterator[None]:
    """Apply each group's factors while the body steps the optimizer; restore the base values, also after an error.

    Schedulers and the user read and write the base values between steps and never see a factor.
    """
    base_values = [{key: group[key] for key in CHANGED if key in group} for group in optimizer.param_groups]
    try:
        for group, factor in zip(optimizer.param_groups, factors, strict=True):
            _apply(group, factor)
        powers = [factor.beta_power for factor in factors]
        if clock.idle and powers.count(1) == len(powers):
            yield
        else:
            with clock.running(optimizer, powers):
                yield
    finally:
        for group, values in zip(optimizer.param_groups, base_values, strict=True):
            group.update(values)


def _apply(group: dict[str, Any], factor: Factors) -> None:
    group["lr"] = group["lr"] * factor.lr
    if factor.weight_decay != 1 and "weight_decay" in group:
        group["weight_decay"] = group["weight_decay"] * factor.weight_decay
    if factor.eps != 1 and isinstance(group.get("eps"), (int, float)):
        group["eps"] = group["eps"] * factor.eps
    if factor.beta_power != 1 and "betas" in group:
        group["betas"] = tuple(beta**factor.beta_power for beta in group["betas"])
    if factor.beta_power != 1 and "centered" in group:  # RMSprop
        group["alpha"] = group["alpha"] ** factor.beta_power
    if factor.beta_power != 1 and "rho" in group:  # Adadelta
        group["rho"] = group["rho"] ** factor.beta_power
    if factor.momentum_power != 1 and group.get("momentum"):
        group["momentum"] = group["momentum"] ** factor.momentum_power


class BiasClock:
    """Keeps Adam's bias correction right while its betas change from step to step.

    torch corrects by ``1 - beta ** step``, which is right only while beta never changes. The right correction needs the
    product of all betas used so far, which is ``beta ** power_sum``; so during a step the optimizer sees the ``step``
    that gives it. Nothing is kept while every power is one.
    """

    def __init__(self) -> None:
        self._power_sums: dict[Tensor, float] = {}

    @property
    def idle(self) -> bool:
        """Whether every power so far was one, so that there is nothing to keep."""
        return not self._power_sums

    @contextmanager
    def running(self, optimizer: Optimizer, powers: Sequence[float]) -> Iterator[None]:
        """Show the optimizer effective step counts while the body steps it; count the step."""
        replaced: list[tuple[dict[str, Any], Any]] = []  # a state and its step count
        for group, power in zip(optimizer.param_groups, powers, strict=True):
            if "betas" not in group:
                continue
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = optimizer.state.get(parameter) or {}
                total = self._power_sums.get(parameter)
                if total is None:  # only then is a count read that may be on the device
                    total = float(state["step"]) if "step" in state else 0.0
                total = self._power_sums[parameter] = total + power
                if "step" in state:
                    replaced.append((state, state["step"]))
                    state["step"] = _like(state["step"], effective_step(total, power) - 1)
        yield
        for state, original in replaced:
            state["step"] = original + 1

    def state_dict(self, parameters: Sequence[Tensor]) -> dict[str, float]:
        """Power sums by the parameter's position in the list."""
        return {str(i): self._power_sums[p] for i, p in enumerate(parameters) if p in self._power_sums}

    def load_state_dict(self, state: dict[str, float], parameters: Sequence[Tensor]) -> None:
        """Continue from saved power sums."""
        self._power_sums = {parameters[int(i)]: float(value) for i, value in state.items()}


def _like(original: Any, value: float) -> Any:
    return torch.full_like(original, value) if isinstance(original, Tensor) else value
