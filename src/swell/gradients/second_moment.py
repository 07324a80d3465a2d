"""Adam's second moment after a change of the batch: what it would be had every step had the new one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from swell.gradients.placement import local
from swell.rules.metric import WARM_UP_STEPS

_SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq")  # the latter of AMSGrad
_TOGETHER = 2**24  # elements that are carried over at once: few calls, and little memory


class _Moments(NamedTuple):
    """Of one parameter; this replica's piece, where it is sharded."""

    first: Tensor
    second: Tensor
    weight: float  # of the squared first moment


class SecondMoment:
    """The second moment of an optimizer that is ``carried`` over from batch to batch, or left alone."""

    def __init__(self, optimizer: Optimizer, *, carried: bool) -> None:
        self._optimizer, self._carried = optimizer, carried
        self.batch: int | None = None  # that it belongs to; None before the first update

    def follow(self, batch: int) -> None:
        """An update at this global batch is next."""
        if batch != self.batch:
            if self.batch is not None and self._carried:
                follow_batch(self._optimizer, before=self.batch, after=batch)
            self.batch = batch


@torch.no_grad()
def follow_batch(optimizer: Optimizer, *, before: int, after: int) -> None:
    r"""Carry the second moments of Adam and its kin over from one batch to another, element by element.

    .. math:: v' = m^2 + (v - m^2) \, B / B'

    A second moment v is the mean of squared gradients: signal and noise, and the noise goes with 1 / batch. Left alone
    it forgets the old batch in 1 / (1 - beta2) steps, a thousand by default, and until then steps are too small after a
    growth. The first moment m tells the signal, with a small part of the noise (a twentieth at beta1 = 0.9), so the
    result is a little too large after a growth. Where m^2 is above v nothing is changed. Both are corrected for their
    bias. Going there and back changes nothing.

    An optimizer with other states, or with second moments of whole blocks, is left alone.
    """
    portion, elements = list[_Moments](), 0
    for moments in _moments(optimizer):
        elements += moments.second.numel()
        if portion and elements > _TOGETHER:
            _carry_over(portion, before / after)
            portion, elements = [], moments.second.numel()
        portion.append(moments)
    if portion:
        _carry_over(portion, before / after)


def _moments(optimizer: Optimizer) -> Iterator[_Moments]:
    """The moments that are past their warm-up, one second moment at a time."""
    for group in optimizer.param_groups:
        betas = [float(beta) for beta in group.get("betas", ())]
        if len(betas) != 2:
            continue
        for parameter in group["params"]:
            state = optimizer.state.get(parameter) or {}
            steps = float(state.get("step", 0))
            if steps < WARM_UP_STEPS:
                continue
            first, second = (1 - beta**steps for beta in betas)
            for key in _SECOND_MOMENTS:
                if _are_alike(state.get("exp_avg"), state.get(key)):
                    yield _Moments(local(state["exp_avg"]), local(state[key]), second / first**2)


def _carry_over(portion: list[_Moments], share: float) -> None:
    """In a few calls for all of them, mostly by kernels that Adam has loaded."""
    firsts, seconds = [each.first for each in portion], [each.second for each in portion]
    noise = torch._foreach_mul(firsts, firsts)
    noise = [signal.to(second.dtype) for signal, second in zip(noise, seconds, strict=True)]
    torch._foreach_mul_(noise, [-each.weight for each in portion])
    torch._foreach_add_(noise, seconds)
    torch._foreach_clamp_min_(noise, 0.0)
    torch._foreach_add_(seconds, noise, alpha=share - 1)


def _are_alike(first: Any, second: Any) -> bool:
    """Whether both are plain tensors of numbers for the same elements; not where they are quantised or of blocks."""
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)):
        return False
    plain = type(local(first)) is Tensor and type(local(second)) is Tensor
    return plain and first.shape == second.shape and first.is_floating_point() and second.is_floating_point()
