"""Scalars for TensorBoard, over samples."""

from __future__ import annotations

import math
import os
from typing import Any

from swell.core.events import BatchChanged, EpochEnded, Event, Resized, Stepped
from swell.errors import DependencyError
from swell.telemetry.scalars import scalars


class TensorBoardSink:
    """Writes a run's events as TensorBoard scalars; the horizontal axis counts samples, so runs can be compared.

    ``loss``, ``batch/…`` (global, micro, accumulation, replicas), ``scale/…`` (gain, progress, lr and its factor for
    each group), ``noise/…`` and ``speed/…`` at every step; ``epoch/…`` for each metric; decisions and resizes as text.
    Raises ``DependencyError`` if torch or tensorboard is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            raise DependencyError(
                f"{error.name} is not installed; expected it for TensorBoardSink. Install it from a checkout of swell: "
                f"pip install '.[torch,tensorboard]'."
            ) from error
        self._writer: Any = SummaryWriter(os.fspath(folder))
        self._samples = 0

    def emit(self, event: Event) -> None:
        if isinstance(event, Stepped):
            self._samples = event.samples
            for tag, value in scalars(event).items():
                self._scalar(tag, value, event)
        elif isinstance(event, EpochEnded):
            for name, value in event.metrics.items():
                self._scalar(f"epoch/{name}", value, event)
        elif isinstance(event, BatchChanged):
            micro = "" if event.micro_after is None else f", in micro-batches of {event.micro_after}"
            self._text("batch", f"{event.before} to {event.after}{micro} by {event.policy}", event)
        elif isinstance(event, Resized):
            self._text("world", f"{event.before} to {event.after} replicas: {event.reason}", event)

    def close(self) -> None:
        self._writer.close()

    def _scalar(self, tag: str, value: float | None, event: Event) -> None:
        if value is not None and math.isfinite(value):
            self._writer.add_scalar(tag, value, global_step=self._samples, walltime=event.time)

    def _text(self, tag: str, text: str, event: Event) -> None:
        self._writer.add_text(tag, text, global_step=self._samples, walltime=event.time)
