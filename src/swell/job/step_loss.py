"""The loss of one step: those of its micro-batches, with their weights."""

from __future__ import annotations

from torch import Tensor


class StepLoss:
    """Numbers on the CPU, which has nothing to wait for; on an accelerator tensors, which nobody waits for."""

    def __init__(self) -> None:
        self.parts: list[tuple[Tensor | float, float]] = []

    def add(self, loss: Tensor, weight: float) -> None:
        """Count a micro-batch's loss towards the step's mean."""
        if loss.is_cpu:
            self.parts.append((loss.item(), weight))
            return
        part = loss.detach()
        # Others follow, and a CUDA graph writes them to the same memory.
        self.parts.append((part if weight == 1 else part.clone(), weight))

    @property
    def on_host(self) -> bool:
        """Whether the step's losses are numbers, so that telling them waits for no device."""
        return all([not isinstance(loss, Tensor) for loss, _ in self.parts])

    def clear(self) -> None:
        """Forget the step's."""
        if self.parts:
            self.parts = []

    def mean(self) -> Tensor | float:
        """Their weighted sum: in float64, unless it is one loss as it is."""
        if len(self.parts) == 1 and self.parts[0][1] == 1:
            return self.parts[0][0]
        parts = [(loss.double() if isinstance(loss, Tensor) else loss) * weight for loss, weight in self.parts]
        return sum(parts[1:], parts[0]) if parts else 0.0
