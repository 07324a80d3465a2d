"""Who tells the world what happens: the first replica, through whatever sinks there are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from swell.core.events import EpochEnded, EpochStarted, Event, RunEnded, RunStarted, Stepped, from_json, to_json
from swell.core.protocols import Sink
from swell.runtime.environment import read_environment
from swell.telemetry import EventLog, Fanout, last_step, open_sinks
from swell.version import __version__

if TYPE_CHECKING:
    from swell.job.job import Job


class Announcer:
    """Emits a job's events; opens its sinks when the first one is due on the first replica.

    Every replica remembers the latest step, so that it is told even if the first replica is lost between the commit and
    its telling.
    """

    def __init__(self, job: Job, *, progress: bool | None, sinks: Sequence[Sink]) -> None:
        self._job, self._progress, self._extra = job, progress, tuple(sinks)
        self._sinks: Fanout | None = None
        self._step: Stepped | None = None  # the latest, told or not
        self._told = True  # whether this replica told it, or knows that it was told
        self.begun = self.over = False  # whether the run's beginning and its end were told

    @property
    def latest(self) -> str:
        """The latest step, for replicas that missed it; empty where there was none."""
        return "" if self._step is None else to_json(self._step)

    def heard(self, latest: str) -> None:
        """Another replica's latest step, which this one missed."""
        step = from_json(latest) if latest else None
        if isinstance(step, Stepped):
            self._step, self._told = step, False

    def emit(self, event: Event) -> None:
        """Tell it, if this replica is the first one now; it becomes that when those before it leave."""
        if isinstance(event, Stepped):
            self._step, self._told = event, False
        if not self._job.is_main:
            return
        if self._sinks is None:
            self._sinks = open_sinks(self._job.run_dir, progress=self._progress, extra=self._all_extra())
        missed = None if self._told or self._step is event else self._step
        self._told = True
        if missed is not None and not self._was_told(missed):
            self._sinks.emit(missed)
        self._sinks.emit(event)

    def _was_told(self, step: Stepped) -> bool:
        """Whether the replica that was the first one before has written that step down."""
        logs = [sink for sink in (self._sinks.sinks if self._sinks else ()) if isinstance(sink, EventLog)]
        return not logs or any(last_step(log.path) >= step.step for log in logs)

    def _all_extra(self) -> tuple[Sink, ...]:
        asked = read_environment().swell_events
        return self._extra if asked is None else (*self._extra, EventLog(asked))

    def run_started(self) -> None:
        """The loop begins, from the start or from a checkpoint."""
        job, self.begun, self.over = self._job, True, False
        self.emit(
            RunStarted(
                time=time.time(),
                version=__version__,
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
        self.over = True
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
