"""Gradients that stay in ``.grad`` between the micro-batches of a step, and what the user's loop did to them there."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, eq, is_

from torch import Tensor

_grad = attrgetter("grad")


class KeptGradients:
    """Remembers which gradients a micro-batch left in ``.grad``, until the next one's backward pass.

    A loop that was not written for swell may clear gradients in between. ``zero_grad()`` only lets go of them, so they
    are put back. One that writes into them (``set_to_none=False``, a clipping of its own) is told by torch's count of
    writes.
    """

    def __init__(self) -> None:
        self._gradients: list[Tensor | None] = []
        self._versions: list[int] = []

    def keep(self, parameters: Sequence[Tensor]) -> None:
        """Remember what is in ``.grad`` now."""
        self._gradients = list(map(_grad, parameters))
        self._versions = [0 if gradient is None else gradient._version for gradient in self._gradients]

    def clear(self) -> None:
        """Forget it."""
        if self._gradients:
            self._gradients = []

    def restore(self, parameters: Sequence[Tensor]) -> bool:
        """Put back what was taken away; False where a value was changed or replaced."""
        kept, self._gradients = self._gradients, []
        if not kept:
            return True
        present = list(map(_grad, parameters))
        if not all(map(is_, kept, present)):
            if not all(now is before or now is None for now, before in zip(present, kept, strict=True)):
                return False
            for parameter, gradient in zip(parameters, kept, strict=True):
                parameter.grad = gradient
        versions = [0 if gradient is None else gradient._version for gradient in kept]
        return all(map(eq, versions, self._versions))
