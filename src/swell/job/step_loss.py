"""The loss of one step: those of its micro-batches, with their weights."""

from __future__ import annotations

from torch import Tensor
from torch.autograd.function import BackwardCFunction


class StepLoss:
    """Numbers on the CPU, which has nothing to wait for; on an accelerator tensors, which nobody waits for."""

    def __init__(self) -> None:
        self.parts: list[tuple[Tensor | float, float]] = []
        self.stays = True  # whether those on an accelerator have memory of their own, which the next step leaves alone

    def add(self, loss: Tensor, weight: float) -> None:
        """Count a micro-batch's loss towards the step's mean."""
        if loss.is_cpu:
            self.parts.append((loss.item(), weight))
            return
        part = loss.detach()
        if not _has_own_memory(loss):
            if weight == 1:
                self.stays = False
            else:  # others follow, which a CUDA graph writes to the same memory
                part = part.clone()
        self.parts.append((part, weight))

    @property
    def on_host(self) -> bool:
        """Whether the step's losses are numbers, so that telling them waits for no device."""
        return all([not isinstance(loss, Tensor) for loss, _ in self.parts])

    @property
    def is_one(self) -> bool:
        """Whether it is one loss as it is."""
        return len(self.parts) == 1 and self.parts[0][1] == 1

    def clear(self) -> None:
        """Forget the step's."""
        if self.parts:
            self.parts, self.stays = [], True

    def mean(self) -> Tensor | float:
        """Their weighted sum: in float64, unless it is one loss as it is."""
        if self.is_one:
            return self.parts[0][0]
        parts = [(loss.double() if isinstance(loss, Tensor) else loss) * weight for loss, weight in self.parts]
        return sum(parts[1:], parts[0]) if parts else 0.0


def _has_own_memory(loss: Tensor) -> bool:
    """Whether the loss was computed by an operation of torch, into new memory.

    Compiled code may run as a CUDA graph, which writes every loss to the same place.
    """
    return loss._version == 0 and not loss._is_view() and not isinstance(loss.grad_fn, BackwardCFunction)
