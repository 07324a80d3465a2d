"""Runs in MLflow."""

from __future__ import annotations

import math
from typing import Any

from swell.core.events import EpochEnded, Event, RunEnded, RunStarted, Stepped
from swell.errors import DependencyError
from swell.telemetry.scalars import scalars, settings_of, words

_LONGEST = 500  # characters of a parameter that every MLflow store takes


class MlflowSink:
    """Sends a run's events to MLflow: figures of steps and metrics of epochs by samples, settings as parameters, and
    changes with their reasons as the tag ``why``.

        sinks=[MlflowSink("sqlite:///mlflow.db", experiment="digits")]

    Uses a client of its own, so ``mlflow.start_run`` in the script is not disturbed. At most one step in ``every_s``
    seconds is sent. Raises ``DependencyError`` if mlflow is not installed.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        experiment: str = "swell",
        name: str | None = None,
        every_s: float = 1.0,
    ) -> None:
        try:
            from mlflow.tracking import MlflowClient  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise DependencyError(
                "mlflow is not installed; expected it for MlflowSink. Install it: pip install mlflow."
            ) from error
        self._client: Any = MlflowClient(tracking_uri=tracking_uri)
        self._experiment, self._name, self._every_s = experiment, name, every_s
        self._run_id: str | None = None
        self._samples, self._sent_at = 0, -math.inf
        self._finished = False

    def emit(self, event: Event) -> None:
        run_id = self._open(event)
        if isinstance(event, Stepped):
            self._samples = event.samples
            if event.time - self._sent_at >= self._every_s:
                self._sent_at = event.time
                self._log(run_id, scalars(event), event)
            return
        if isinstance(event, EpochEnded):
            self._log(run_id, {f"epoch/{name}": value for name, value in event.metrics.items()}, event)
        self._finished = isinstance(event, RunEnded) and event.reason == "finished"
        text = words(event)
        if text is not None:
            self._client.set_tag(run_id, "why", text[:5000])

    def close(self) -> None:
        if self._run_id is not None:
            self._client.set_terminated(self._run_id, "FINISHED" if self._finished else "KILLED")
            self._run_id = None

    def _open(self, event: Event) -> str:
        if self._run_id is None:
            known = self._client.get_experiment_by_name(self._experiment)
            experiment = self._client.create_experiment(self._experiment) if known is None else known.experiment_id
            self._run_id = str(self._client.create_run(experiment, run_name=self._name).info.run_id)
            settings = settings_of(event) if isinstance(event, RunStarted) else {}
            for key, value in settings.items():
                self._client.log_param(self._run_id, key, str(value)[:_LONGEST])
        return self._run_id

    def _log(self, run_id: str, values: dict[str, float], event: Event) -> None:
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]

        when = int(1000 * event.time)
        metrics = [Metric(key, value, when, self._samples) for key, value in values.items() if math.isfinite(value)]
        self._client.log_batch(run_id, metrics=metrics)
