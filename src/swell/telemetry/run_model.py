"""One model of a run for every view: a pure function of its events, which may be given bit by bit."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from swell.core.events import (
    BatchChanged,
    EpochEnded,
    EpochStarted,
    Event,
    Faulted,
    Hinted,
    Noticed,
    Resized,
    RunEnded,
    RunStarted,
    Saved,
    Stepped,
    StepSkipped,
    Warned,
)
from swell.telemetry.time_account import TimeAccount
from swell.telemetry.time_left import TimeLeft, time_left

COLUMNS = (
    "time",  # seconds since the epoch
    "step",
    "samples",
    "progress",
    "epoch",
    "loss",
    "batch",
    "micro",
    "accumulation",
    "replicas",
    "lr",
    "lr_factor",
    "gain",
    "noise",
    "noise_low",
    "noise_high",
    "step_s",
    "active",  # seconds of the run so far, without the time it was stopped
)
_NAN = math.nan
_RECENT = 32  # steps over which speeds are averaged
_MOST_NOTES = 20_000


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened at a place of the run: the event itself and where it was."""

    event: Event
    step: int
    samples: int
    progress: float
    active: float


@dataclass
class RunModel:
    """What is known of a run: one row for each step that counts, notes for everything else, and where the time went.

    Steps that were repeated after a resume count once, as they were done the last time. The same events give the same
    model, however they are cut into calls of ``take``.
    """

    columns: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in COLUMNS})
    notes: list[Note] = field(default_factory=list)
    starts: list[RunStarted] = field(default_factory=list)
    ended: RunEnded | None = None  # how it ended, if it has not started again since
    epoch_started: EpochStarted | None = None
    metrics: dict[str, float] = field(default_factory=dict)  # of the last epoch that ended
    epochs_done: int = 0
    hints: Hinted | None = None
    account: TimeAccount = field(default_factory=TimeAccount)
    latest: Stepped | None = None
    rewinds: int = 0  # how often rows were taken back; a view that has drawn them starts over
    first_time: float | None = None
    last_time: float | None = None  # of the latest event
    _stopped_s: float = 0.0  # between the lives of the run

    def take(self, event: Event) -> None:
        """Add the next event of the log."""
        if isinstance(event, RunStarted):
            self._start(event)
        self.first_time = event.time if self.first_time is None else self.first_time
        self.account.take(event)
        if isinstance(event, Stepped):
            self._step(event)
        elif isinstance(event, EpochStarted):
            self.epoch_started = event
        elif isinstance(event, EpochEnded):
            self.metrics, self.epochs_done = dict(event.metrics), event.epoch + 1
        elif isinstance(event, RunEnded):
            self.ended = event
        elif isinstance(event, Hinted):
            self.hints = event
        self.last_time = event.time if self.last_time is None else max(self.last_time, event.time)
        if isinstance(event, _NOTED):
            self._note(event)

    def take_all(self, events: Iterable[Event]) -> RunModel:
        """Add several events; returns the model."""
        for event in events:
            self.take(event)
        return self

    def _start(self, event: RunStarted) -> None:
        self.starts.append(event)
        if self.last_time is not None and (self.ended is not None or event.time > self.last_time):
            self._stopped_s += max(0.0, event.time - self.last_time)
        self.ended = None
        self._rewind(event.samples)

    def _step(self, event: Stepped) -> None:
        samples = self.columns["samples"]
        if samples and samples[-1] >= event.samples:
            self._rewind(event.samples - 1)
        row = (
            event.time,
            event.step,
            event.samples,
            event.progress,
            event.epoch,
            _number(event.loss),
            event.global_batch,
            event.micro_batch,
            event.accumulation,
            event.replicas,
            _number(event.lr[0] if event.lr else None),
            _number(event.lr_factor[0] if event.lr_factor else None),
            event.gain,
            _number(event.noise_scale),
            _number(event.noise_low),
            _number(event.noise_high),
            event.step_s,
            event.time - (self.first_time if self.first_time is not None else event.time) - self._stopped_s,
        )
        for name, value in zip(COLUMNS, row, strict=True):
            self.columns[name].append(value)
        self.latest, self.ended = event, None

    def _rewind(self, samples: int) -> None:
        """Take back the steps after this number of samples: the run repeats them."""
        kept = bisect_left(self.columns["samples"], samples + 1)
        if kept < self.num_steps:
            self.account.repeat(self.columns["step_s"][kept:])
            for column in self.columns.values():
                del column[kept:]
            self.rewinds += 1

    def _note(self, event: Event) -> None:
        last = self.num_steps - 1
        samples, progress, active = (
            self.columns[name][last] if last >= 0 else 0.0 for name in ("samples", "progress", "active")
        )
        step = getattr(event, "step", None)
        step = step if step is not None else int(self.columns["step"][last]) if last >= 0 else 0
        if len(self.notes) < _MOST_NOTES:
            self.notes.append(Note(event, step, int(samples), progress, active))

    @property
    def num_steps(self) -> int:
        """Rows: steps that count."""
        return len(self.columns["samples"])

    @property
    def started(self) -> RunStarted | None:
        """How the run was started the last time; None before that."""
        return self.starts[-1] if self.starts else None

    @property
    def done(self) -> float | None:
        """The part of the run that is done, 0 to 1; None if its length is not known."""
        began, latest = self.epoch_started, self.latest
        if self.ended is not None and self.ended.reason == "finished":
            return 1.0
        if began is None or latest is None:
            return None
        if began.total_progress:
            return min(1.0, latest.progress / began.total_progress)
        return min(1.0, latest.samples / began.total_samples) if began.total_samples else None

    @property
    def epoch_part(self) -> float | None:
        """The part of the present epoch that is done; None if its length is not known."""
        began, latest = self.epoch_started, self.latest
        if began is None or latest is None or not began.epoch_size:
            return None
        if latest.epoch != began.epoch:
            return 0.0
        return min(1.0, (latest.samples - began.epoch * began.epoch_size) / began.epoch_size)

    @property
    def samples_per_s(self) -> float | None:
        """Speed of the last steps themselves; None before the first."""
        seconds = sum(self.columns["step_s"][-_RECENT:])
        return sum(self.columns["batch"][-_RECENT:]) / seconds if seconds > 0 else None

    @property
    def goodput(self) -> float | None:
        """Samples a second of the last steps, each weighted by its worth at the base batch; None if unknown."""
        seconds = sum(self.columns["step_s"][-_RECENT:])
        if self.started is None or seconds <= 0:
            return None
        return sum(self.columns["gain"][-_RECENT:]) * self.started.base_batch / seconds

    @property
    def left(self) -> TimeLeft | None:
        """How long it will still take, with bounds; None if that is not known."""
        began = self.epoch_started
        if began is None or self.ended is not None or not self.num_steps:
            return None
        if began.total_progress:
            return time_left(self.columns["active"], self.columns["progress"], began.total_progress)
        if began.total_samples:
            return time_left(self.columns["active"], self.columns["samples"], began.total_samples)
        return None

    @property
    def active_s(self) -> float:
        """Seconds from its first event to its last, without the time it was stopped."""
        if self.first_time is None or self.last_time is None:
            return 0.0
        return max(0.0, self.last_time - self.first_time - self._stopped_s)


_NOTED = (
    RunStarted,
    RunEnded,
    BatchChanged,
    StepSkipped,
    EpochEnded,
    Resized,
    Saved,
    Noticed,
    Faulted,
    Warned,
)


def model_of(events: Iterable[Event]) -> RunModel:
    """The model of a run by its events."""
    return RunModel().take_all(events)


def _number(value: float | None) -> float:
    return _NAN if value is None else float(value)
