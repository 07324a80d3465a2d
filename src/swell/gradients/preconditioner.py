"""Gradients in Adam's own metric, by the second moment frozen from the step before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from swell.gradients.placement import local
from swell.rules.metric import WARM_UP_STEPS

SECOND_MOMENTS = ("exp_avg_sq", "square_avg", "sum")  # Adam and its kin, RMSprop and Adadelta, Adagrad
SMALL, PIECE = 2**14, 2**18  # elements: of gradients that are divided whole on the CPU, of others at a time

Member = tuple[int, Tensor, Tensor, float]  # where a gradient stands, itself, its second moment, the bias correction


class Preconditioner:
    """Divides gradients by the root of their optimizer's second moment, without waiting for the device.

    A fused optimizer keeps its step counts on the device; they are read once and counted on from there.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._steps: dict[Tensor, float] = {}  # of parameters whose count lies on an accelerator
        self._warm = False

    def reset(self) -> None:
        """The optimizer's state was replaced: read its counts again."""
        self._steps, self._warm = {}, False

    def stepped(self) -> None:
        """The optimizer has made a step."""
        for parameter in self._steps:
            self._steps[parameter] += 1

    @property
    def warm(self) -> bool:
        """Whether every second moment is past its warm-up, so that preconditioned figures mean one thing."""
        if not self._warm:
            held = [(p, s) for p, s in self._optimizer.state.items() if isinstance(s, dict) and _key(s) is not None]
            self._warm = bool(held) and all(self._count(p, state) >= WARM_UP_STEPS for p, state in held)
        return self._warm

    def divide(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Each gradient divided by ``sqrt(v) + eps`` with ``v`` bias-corrected; unchanged where there is no ``v`` yet.

        The second moment is the one before this step, so micro-gradients and their mean share one metric and the
        estimators stay unbiased. Reference: AdaptDL's AdamGradientNoiseScale.
        """
        result: list[Tensor | None] = list(gradients)
        for (_, dtype, eps), members in self._alike(parameters, gradients).items():
            _put_quotients(result, members, dtype, eps)
        return result

    @torch.no_grad()
    def measurable(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """In place of each gradient something of its norm in the metric: the quotient, or of large ones that norm.

        The latter on the CPU, where going through a large gradient piece by piece is quicker than asking for memory.
        """
        if not all(parameter.device.type == "cpu" for parameter in parameters):
            return self.divide(parameters, gradients)
        result: list[Tensor | None] = list(gradients)
        for (_, dtype, eps), members in self._alike(parameters, gradients).items():
            _put_quotients(result, [member for member in members if member[1].numel() <= SMALL], dtype, eps)
            space = torch.empty(PIECE, dtype=torch.promote_types(dtype, torch.float32))
            for index, gradient, second, correction in members:
                if gradient.numel() > SMALL:
                    result[index] = _norm(gradient, second, correction, eps, space)
        return result

    def _alike(
        self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]
    ) -> dict[tuple[Any, ...], list[Member]]:
        """Gradients that have a second moment, by its device, its type and eps."""
        group_of = {p: group for group in self._optimizer.param_groups for p in group["params"]}
        alike: dict[tuple[Any, ...], list[Member]] = {}
        for index, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            state = self._optimizer.state.get(parameter, {})
            key = _key(state)
            if gradient is None or key is None or gradient.is_sparse:
                continue
            count = self._count(parameter, state)
            if count < WARM_UP_STEPS:
                continue
            group, second, gradient = group_of[parameter], local(state[key]), local(gradient)
            corrected = key == "exp_avg_sq" and "betas" in group
            correction = (1 - float(group["betas"][1]) ** count) ** -0.5 if corrected else 1.0
            eps = group.get("eps", 1e-8)
            eps = eps if isinstance(eps, (int, float)) else 1e-8
            alike.setdefault((second.device, second.dtype, eps), []).append((index, gradient, second, correction))
        return alike

    def _count(self, parameter: Tensor, state: dict[str, Any]) -> float:
        step = state.get("step", 0)
        if not isinstance(step, Tensor) or step.device.type == "cpu":
            return float(step)
        if parameter not in self._steps:
            self._steps[parameter] = float(step)
        return self._steps[parameter]


def _key(state: dict[str, Any]) -> str | None:
    return next((key for key in SECOND_MOMENTS if key in state), None)


def _put_quotients(result: list[Tensor | None], members: Sequence[Member], dtype: torch.dtype, eps: float) -> None:
    """Divide some gradients, all at once, and put the quotients in their places."""
    if not members:
        return
    scales = torch._foreach_sqrt([second for _, _, second, _ in members])
    torch._foreach_mul_(scales, [correction for _, _, _, correction in members])
    torch._foreach_add_(scales, eps)
    divided = torch._foreach_div([gradient.to(dtype) for _, gradient, _, _ in members], scales)
    for (index, _, _, _), quotient in zip(members, divided, strict=True):
        result[index] = quotient


def _norm(gradient: Tensor, second: Tensor, correction: float, eps: float, space: Tensor) -> Tensor:
    """The norm of ``gradient / (correction * sqrt(second) + eps)``, piece by piece, the correction drawn out."""
    norms: list[Tensor] = []
    size = space.numel()
    for part, moment in zip(gradient.reshape(-1).split(size), second.reshape(-1).split(size), strict=True):
        here = space[: part.numel()]
        torch.sqrt(moment, out=here).add_(eps / correction)
        norms.append(torch.linalg.vector_norm(torch.div(part, here, out=here)))
    return (norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))) / correction
