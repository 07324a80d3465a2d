"""The running sum of one step's weighted micro-gradients, and the norms of each on the way."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from swell.gradients.norms import WIDE, squared_norms
from swell.gradients.preconditioner import precondition

ABSENT, DENSE, SPARSE = "0", "1", "2"


class Accumulator:
    """Takes each micro-gradient out of ``.grad``, measures it, and adds it up.

    Autograd hands every micro-gradient over whole, so measuring reads it once and copies nothing; with a single
    micro-batch the sum *is* that gradient. A ``zero_grad()`` left in the user's loop can do no harm, because between
    micro-batches nothing is kept in ``.grad``. Half-precision gradients are added up in float32.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._sums: dict[Tensor, Tensor] = {}
        self.small_squares: Tensor | None = None  # sum of |m_j g_j|^2 / m_j by group, m_j the loss multiplier
        self.small_squares_preconditioned: Tensor | None = None

    @property
    def parameters(self) -> list[Tensor]:
        """Every parameter the optimizer holds now, group by group; groups added later are seen."""
        return [p for group in self._optimizer.param_groups for p in group["params"]]

    @property
    def groups(self) -> list[int]:
        """The group of each entry of ``parameters``."""
        return [i for i, group in enumerate(self._optimizer.param_groups) for _ in group["params"]]

    def take(self, *, multiplier: float, measure: bool, preconditioned: bool) -> None:
        """Move the gradients that one micro-batch left in ``.grad`` into the sum; ``multiplier`` weighed its loss."""
        parameters = self.parameters
        gradients = [p.grad for p in parameters]
        if measure and multiplier > 0:
            self.small_squares = _added(self.small_squares, self._squares(gradients), 1 / multiplier)
            if preconditioned:
                scaled = precondition(self._optimizer, parameters, gradients)
                squares = self._squares(scaled)
                self.small_squares_preconditioned = _added(self.small_squares_preconditioned, squares, 1 / multiplier)
        fresh: list[tuple[Tensor, Tensor]] = []
        sums: list[Tensor] = []
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is None:
                continue
            parameter.grad = None
            held = self._sums.get(parameter)
            if held is None:
                self._sums[parameter] = gradient
            elif held.is_sparse or gradient.is_sparse:
                self._sums[parameter] = held + gradient
            else:
                if held.dtype in WIDE:
                    held = self._sums[parameter] = held.to(WIDE[held.dtype])
                sums.append(held)
                fresh.append((parameter, gradient))
        if fresh:
            torch._foreach_add_(sums, [gradient.to(s.dtype) for s, (_, gradient) in zip(sums, fresh, strict=True)])

    def _squares(self, gradients: Sequence[Tensor | None]) -> Tensor:
        return squared_norms(gradients, self.groups, num_groups=len(self._optimizer.param_groups))

    def codes(self) -> str:
        """One character a parameter: whether it has no gradient here, a dense one or a sparse one."""
        return "".join(
            ABSENT if (held := self._sums.get(p)) is None else SPARSE if held.is_sparse else DENSE
            for p in self.parameters
        )

    def exchanged(self, codes: Sequence[str]) -> list[Tensor]:
        """The sums that replicas add up, the same list on each: zeros where only other replicas have a gradient."""
        tensors: list[Tensor] = []
        for parameter, code in zip(self.parameters, codes, strict=True):
            if code == ABSENT:
                continue
            held = self._sums.get(parameter)
            if held is None:
                held = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                held = held.to(WIDE.get(held.dtype, held.dtype))
            elif held.is_sparse:
                held = held.to_dense()
            elif held.dtype in WIDE:
                held = held.to(WIDE[held.dtype])
            self._sums[parameter] = held
            tensors.append(held)
        return tensors

    def release(self, codes: Sequence[str]) -> None:
        """Put the sums into ``.grad`` for the optimizer; a parameter that nobody used keeps none."""
        for parameter, code in zip(self.parameters, codes, strict=True):
            held = self._sums.get(parameter)
            if held is None or code == ABSENT:
                parameter.grad = None
            elif code == SPARSE and not held.is_sparse:
                parameter.grad = held.to(parameter.dtype).to_sparse(1)
            else:
                parameter.grad = held.to(parameter.dtype)
        self._sums.clear()

    def clear(self) -> None:
        """Forget the step: its sums, its norms and whatever is left in ``.grad``."""
        self._sums.clear()
        self.small_squares = self.small_squares_preconditioned = None
        for parameter in self.parameters:
            parameter.grad = None


def _added(total: Tensor | None, part: Tensor, factor: float) -> Tensor:
    part = part * factor
    return part if total is None else total + part.to(total.device)
