"""The event of one step, put together from what is known at the commit and the loss that the device gives later."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from swell.core.events import Stepped
from swell.errors import LossError
from swell.job.step_clock import Duration
from swell.job.update import not_finite


class StepRecord:
    """Emits the step's event, with the batch that was chosen, once both the commit and the loss are there."""

    def __init__(self, emit: Callable[[Stepped, int], None], *, nonfinite: str) -> None:
        self._emit, self._nonfinite = emit, nonfinite
        self._loss: float | None = None
        self._has_loss = False
        self._facts: dict[str, Any] | None = None
        self._duration: Duration
        self._batch = 0  # as it was chosen; the last step of an epoch may have had fewer samples

    def set_loss(self, loss: float | None) -> None:
        """The step's mean loss arrived from the device; None where the loop does not hand over losses."""
        self._loss, self._has_loss = loss, True
        if loss is not None and not math.isfinite(loss) and self._nonfinite == "raise":
            raise LossError(not_finite(loss))
        self._emit_if_complete()

    def set_committed(self, duration: Duration, batch: int, **fields: Any) -> None:
        """The step was committed; its duration is read when everything is known."""
        self._duration, self._batch, self._facts = duration, batch, fields
        self._emit_if_complete()

    def _emit_if_complete(self) -> None:
        if self._facts is not None and self._has_loss:
            facts, self._facts = self._facts, None
            event = Stepped(time=time.time(), loss=self._loss, step_s=self._duration.seconds, **facts)
            self._emit(event, self._batch)
