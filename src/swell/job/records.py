"""One step's event, put together from what is known at the commit and what the device tells later."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from swell.core.events import Event, Stepped
from swell.errors import LossError
from swell.job.step_clock import Duration
from swell.job.update import not_finite


class StepRecord:
    """Emits the step's event once both the commit and the loss are there."""

    def __init__(self, emit: Callable[[Event], None], *, nonfinite: str) -> None:
        self._emit, self._nonfinite = emit, nonfinite
        self._loss: float | None = None
        self._told = False
        self._fields: dict[str, Any] | None = None
        self._took: Duration

    def set_loss(self, loss: float | None) -> None:
        """The step's mean loss came from the device; None where the loop does not tell it."""
        self._loss, self._told = loss, True
        if loss is not None and not math.isfinite(loss) and self._nonfinite == "raise":
            raise LossError(not_finite(loss))
        self._maybe_emit()

    def set_committed(self, took: Duration, **fields: Any) -> None:
        """The step was committed; what it took is asked for when all is told."""
        self._took, self._fields = took, fields
        self._maybe_emit()

    def _maybe_emit(self) -> None:
        if self._fields is not None and self._told:
            self._emit(Stepped(time=time.time(), loss=self._loss, step_s=self._took.seconds, **self._fields))
            self._fields = None
