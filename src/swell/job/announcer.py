"""Who tells the world what happens: the first replica, through whatever sinks there are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import swell
from swell.core.events import EpochEnded, EpochStarted, Event, RunEnded, RunStarted
from swell.core.protocols import Sink
from swell.telemetry import Fanout, open_sinks

if TYPE_CHECKING:
    from swell.job.job import Job


class Announcer:
    """Emits a job's events; opens its sinks when the first one is due on the first replica."""

    def __init__(self, job: Job, *, progress: bool | None, sinks: Sequence[Sink]) -> None:
        self._job, self._progress, self._extra = job, progress, tuple(sinks)
        self._sinks: Fanout | None = None

    def emit(self, event: Event) -> None:
        """Tell it, if this replica is the first one now; it becomes that when those before it leave."""
        if not self._job.is_main:
            return
        if self._sinks is None:
            self._sinks = open_sinks(self._job.run_dir, progress=self._progress, extra=self._extra)
        self._sinks.emit(event)

    def run_started(self) -> None:
        """The loop begins, from the start or from a checkpoint."""
        job = self._job
        self.emit(
            RunStarted(
                time=time.time(),
                version=swell.__version__,
                replicas=job.replicas,
                base_batch=job._pace.base,
                policy=repr(job._pace.policy),
                rule=", ".join(repr(trainee.rule) for trainee in job._trainees),
                seed=job._seed,
                samples=job.samples,
            )
        )

    def run_ended(self, reason: str) -> None:
        """The loop is over."""
        self.emit(RunEnded(time=time.time(), step=self._job.steps, samples=self._job.samples, reason=reason))

    def epoch_started(self, *, epochs: int | None) -> None:
        """A pass over the data begins or goes on."""
        job = self._job
        self.emit(
            EpochStarted(
                time=time.time(),
                epoch=job._ledger.epoch,
                samples=job.samples,
                epoch_size=job._training.epoch_size,
                epochs=epochs,
                total_samples=job._passes.total_samples,
                total_progress=job._passes.target,
            )
        )

    def epoch_ended(self, *, complete: bool) -> None:
        """A pass over the data is over, or the user left it."""
        job = self._job
        self.emit(
            EpochEnded(
                time=time.time(),
                epoch=job._ledger.epoch,
                samples=job._ledger.cursor,
                complete=complete,
                metrics=job.metrics.results(reset=False),
            )
        )

    def close(self) -> None:
        """Close the sinks; a later event opens them again."""
        if self._sinks is not None:
            self._sinks.close()
            self._sinks = None
