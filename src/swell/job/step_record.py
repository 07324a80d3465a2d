"""What is told of one step when both its commit and its loss are there; the device gives the loss later."""

from __future__ import annotations

import math
from collections.abc import Callable

from swell.errors import LossError
from swell.job.update import not_finite


class StepRecord:
    """Brings a step's loss to whoever waits for it since the commit."""

    def __init__(self, *, nonfinite: str) -> None:
        self._nonfinite = nonfinite
        self._loss: float | None = None
        self._has_loss = False
        self._tell: Callable[[float | None], None] | None = None

    def set_loss(self, loss: float | None) -> None:
        """The step's mean loss arrived from the device; None where the loop does not hand over losses."""
        self._loss, self._has_loss = loss, True
        if loss is not None and not math.isfinite(loss) and self._nonfinite == "raise":
            raise LossError(not_finite(loss))
        if self._tell is not None:
            self._tell(loss)

    def set_committed(self, tell: Callable[[float | None], None]) -> None:
        """The step was committed; ``tell`` is called once, with its loss."""
        if self._has_loss:
            tell(self._loss)
        else:
            self._tell = tell
