"""Gradients in Adam's own metric, by the second moment as the step before left it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors
from torch.optim import Optimizer

from swell.gradients.placement import is_sharded, local
from swell.rules.metric import WARM_UP_STEPS

SECOND_MOMENTS = ("exp_avg_sq", "square_avg", "sum")  # Adam and its kin, RMSprop and Adadelta, Adagrad
SMALL, PIECE = 2**14, 2**18  # elements: of gradients that are divided whole on the CPU, of others at a time
# Elements, together, of gradients that are divided in one piece on an accelerator, where a call costs more than a copy.
# Their divisors are kept for the other gradients of the step.
PACKED = 2**22


class _Divisor(NamedTuple):
    """What the gradients of one parameter are divided by: ``correction * sqrt(second) + eps``."""

    second: Tensor  # this replica's piece, where the parameter is sharded
    correction: float
    eps: float
    sharded: bool
    group: int  # of the optimizer


_Member = tuple[int, Tensor, _Divisor]  # a gradient's place in the list, the gradient, its divisor


class Preconditioner:
    """Divides gradients by the root of their optimizer's second moment, without waiting for the device.

    A fused optimizer keeps its step counts on the device; they are read once and counted from there. The optimizer's
    state is looked up once a step.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self.reset()

    def reset(self) -> None:
        """The optimizer's state was replaced: read its step counts again."""
        self._counts: dict[Tensor, float] = {}  # of parameters whose count lies on an accelerator, less ``_steps``
        self._steps = 0
        self._warm = False
        self.refresh()

    def refresh(self) -> None:
        """Look the optimizer's state up again before the next gradient is divided."""
        self._divisors: dict[int, _Divisor] | None = None  # by the parameter's id
        self._on_cpu = False
        self._packed: dict[tuple[int, ...], Tensor] = {}  # divisors in one piece, by their gradients' places

    def stepped(self) -> None:
        """The optimizer has made a step."""
        self._steps += 1
        self.refresh()

    @property
    def warm(self) -> bool:
        """Whether every second moment is past its warm-up, so that all preconditioned figures mean the same."""
        if not self._warm:
            states = [(p, s) for p, s in self._optimizer.state.items() if isinstance(s, dict) and _key(s) is not None]
            self._warm = bool(states) and all(self._count(p, state) >= WARM_UP_STEPS for p, state in states)
        return self._warm

    def divide(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Each gradient divided by ``sqrt(v) + eps`` with ``v`` bias-corrected; unchanged where there is no ``v`` yet.

        The second moment is the one before this step, so micro-gradients and their mean share one metric and the
        estimators stay unbiased. Reference: AdaptDL's AdamGradientNoiseScale.
        """
        result: list[Tensor | None] = list(gradients)
        for members in self._alike(parameters, gradients):
            _put_quotients(result, members)
        return result

    @torch.no_grad()
    def norm_proxies(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Tensors with the norms of the quotients: one for each gradient, or for all those of a group the first.

        On the CPU that is just the norm of a large one, because going through it piece by piece is quicker than
        allocating memory. On an accelerator a group's gradients are divided in one piece, unless they are many.
        """
        result: list[Tensor | None] = list(gradients)
        for members in self._alike(parameters, gradients):
            if not self._on_cpu:
                self._put_packed(result, members)
                continue
            large = [member for member in members if member[1].numel() > SMALL]
            if not large:
                _put_quotients(result, members)
                continue
            _put_quotients(result, [member for member in members if member[1].numel() <= SMALL])
            space = torch.empty(PIECE, dtype=torch.promote_types(large[0][2].second.dtype, torch.float32))
            for index, gradient, divisor in large:
                result[index] = _norm(gradient, divisor, space)
        return result

    def _alike(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[list[_Member]]:
        """Gradients that have a divisor, in lists of one group, device and type."""
        if self._divisors is None:
            self._divisors = self._read_divisors()
        alike: dict[tuple[Any, ...], list[_Member]] = {}
        for index, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            divisor = self._divisors.get(id(parameter))
            if divisor is None or gradient is None or gradient.is_sparse:
                continue
            kind = divisor.group, divisor.second.device, divisor.second.dtype
            member = index, local(gradient) if divisor.sharded else gradient, divisor
            alike.setdefault(kind, []).append(member)
        return list(alike.values())

    def _put_packed(self, result: list[Tensor | None], members: list[_Member]) -> None:
        """Put the quotients of a group, in one piece, in the place of its first gradient."""
        places, correction = tuple([index for index, _, _ in members]), members[0][2].correction
        alike = len(members) > 1 and all(divisor.correction == correction for _, _, divisor in members)
        if not alike or sum([gradient.numel() for _, gradient, _ in members]) > PACKED:
            _put_quotients(result, members)
            return
        divisors = self._packed.get(places)
        if divisors is None:
            divisors = self._packed[places] = _flatten_dense_tensors([divisor.second for _, _, divisor in members])
            # Calls for lists, although it is one tensor: mostly Adam's own kernels, which are loaded already.
            torch._foreach_sqrt_([divisors])
            torch._foreach_mul_([divisors], [correction])
            torch._foreach_add_([divisors], members[0][2].eps)
        packed = _flatten_dense_tensors([gradient.to(divisors.dtype) for _, gradient, _ in members])
        for index in places:
            result[index] = None
        torch._foreach_div_([packed], [divisors])
        result[places[0]] = packed

    def _read_divisors(self) -> dict[int, _Divisor]:
        divisors: dict[int, _Divisor] = {}
        self._on_cpu = True
        for number, group in enumerate(self._optimizer.param_groups):
            eps = group.get("eps", 1e-8)
            eps = eps if isinstance(eps, (int, float)) else 1e-8
            for parameter in group["params"]:
                self._on_cpu = self._on_cpu and parameter.device.type == "cpu"
                state = self._optimizer.state.get(parameter, {})
                key = _key(state)
                if key is None or (count := self._count(parameter, state)) < WARM_UP_STEPS:
                    continue
                corrected = key == "exp_avg_sq" and "betas" in group
                correction = (1 - float(group["betas"][1]) ** count) ** -0.5 if corrected else 1.0
                sharded = is_sharded(parameter)
                second = local(state[key]) if sharded else state[key]
                divisors[id(parameter)] = _Divisor(second, correction, eps, sharded, number)
        return divisors

    def _count(self, parameter: Tensor, state: dict[str, Any]) -> float:
        step = state.get("step", 0)
        if not isinstance(step, Tensor) or step.device.type == "cpu":
            return float(step)
        if parameter not in self._counts:
            self._counts[parameter] = float(step) - self._steps
        return self._counts[parameter] + self._steps


def _key(state: dict[str, Any]) -> str | None:
    for key in SECOND_MOMENTS:
        if key in state:
            return key
    return None


def _put_quotients(result: list[Tensor | None], members: Sequence[_Member]) -> None:
    """Divide gradients of one kind, all at once, and put the quotients in their places."""
    if not members:
        return
    first = members[0][2]
    scales = torch._foreach_sqrt([divisor.second for _, _, divisor in members])
    torch._foreach_mul_(scales, [divisor.correction for _, _, divisor in members])
    torch._foreach_add_(scales, first.eps)
    quotients = torch._foreach_div([gradient.to(first.second.dtype) for _, gradient, _ in members], scales)
    for (index, _, _), quotient in zip(members, quotients, strict=True):
        result[index] = quotient


def _norm(gradient: Tensor, divisor: _Divisor, space: Tensor) -> Tensor:
    """The norm of ``gradient / (correction * sqrt(second) + eps)``, piece by piece; corrected once, at the end."""
    norms: list[Tensor] = []
    size, correction = space.numel(), divisor.correction
    seconds = divisor.second.reshape(-1).split(size)
    for piece, second in zip(gradient.reshape(-1).split(size), seconds, strict=True):
        quotient = space[: piece.numel()]
        torch.sqrt(second, out=quotient).add_(divisor.eps / correction)
        norms.append(torch.linalg.vector_norm(torch.div(piece, quotient, out=quotient)))
    return (norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))) / correction
