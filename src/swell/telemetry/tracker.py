"""Runs in Weights & Biases and Trackio, whose modules have the same three functions."""

from __future__ import annotations

import importlib
import math
from typing import Any

from swell.core.events import EpochEnded, Event, RunStarted, Stepped
from swell.errors import DependencyError
from swell.telemetry.scalars import scalars, settings_of, words


class TrackerSink:
    """Sends a run's events to ``wandb`` or ``trackio``; the horizontal axis counts samples, so runs can be compared.

        job = swell.Job("runs/digits", batch=64, sinks=[TrackerSink("wandb", project="digits", mode="offline")])

    ``options`` go to the module's ``init``. The tracker's run is opened with the first event, on the process that
    reports, with the settings of the job as its config. Figures of steps, metrics of epochs, and changes with their
    reasons as text (``why``) are logged; at most one step in ``every_s`` seconds. Raises ``DependencyError`` if the
    module is not installed.
    """

    def __init__(self, module: str, *, every_s: float = 1.0, **options: Any) -> None:
        try:
            self._module: Any = importlib.import_module(module)
        except ImportError as error:
            raise DependencyError(
                f"{module} is not installed; expected it for TrackerSink({module!r}). Install it: pip install {module}."
            ) from error
        self._options, self._every_s = options, every_s
        self._run: Any = None
        self._samples, self._sent_at = 0, -math.inf

    def emit(self, event: Event) -> None:
        if self._run is None:
            config = settings_of(event) if isinstance(event, RunStarted) else {}
            self._run = self._module.init(**{"config": config, **self._options})
        if isinstance(event, Stepped):
            self._samples = event.samples
            if event.time - self._sent_at >= self._every_s:
                self._sent_at = event.time
                self._run.log(scalars(event), step=event.samples)
            return
        if isinstance(event, EpochEnded):
            metrics = {f"epoch/{name}": value for name, value in event.metrics.items() if math.isfinite(value)}
            self._run.log({"epoch/number": event.epoch + 1, **metrics}, step=self._samples)
        text = words(event)
        if text is not None:
            self._run.log({"why": text}, step=self._samples)

    def close(self) -> None:
        if self._run is not None:
            run, self._run = self._run, None
            run.finish()
