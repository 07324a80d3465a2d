"""What happens to the demo's elastic run: it grows, loses a worker, is stopped, and is resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swell.core.events import Event, RunEnded, Stepped
from swell.core.protocols import Sink
from swell.demo.training import Result
from swell.demo.worker import PACE, RESULT
from swell.errors import SwellError
from swell.supervisor.control import ask
from swell.supervisor.notice import EXIT_RESUME
from swell.telemetry import LOG_NAME, LogReader

MOST_PACE = 600.0  # samples per second for one worker, slow enough to watch
_START_SHARE = 0.12  # share of all samples that one worker may use while another starts, so that it joins in time
_POLL_S = 0.05
_LONGEST_S = 600.0


@dataclass(frozen=True)
class Moment:
    """Something that was done to the run, or its effect."""

    time: float  # since the epoch
    text: str
    mark: str  # a word for the picture


@dataclass
class Follower:
    """The run's events as they are written; each new one goes to ``sink``."""

    reader: LogReader
    sink: Sink
    events: list[Event] = field(default_factory=list)

    def poll(self) -> None:
        """Read the events that were written since the last call."""
        for event in self.reader.poll():
            self.events.append(event)
            self.sink.emit(event)

    @property
    def latest(self) -> Stepped | None:
        """The latest step, if any."""
        return next((event for event in reversed(self.events) if isinstance(event, Stepped)), None)


class ElasticRun:
    """``swell run`` of the demo's worker, and the commands of its owner."""

    def __init__(
        self, folder: Path, *, seed: int, epochs: int, total: int, sink: Sink, report: Callable[[Moment], None]
    ) -> None:
        self._folder, self._total, self._report = folder, total, report
        self.log = Follower(LogReader(folder / LOG_NAME), sink)
        self._script = ["-m", "swell.demo.worker", str(folder), "--seed", str(seed), "--epochs", str(epochs)]
        self._deadline = time.monotonic() + _LONGEST_S

    def play(self) -> Result:
        """Take the run through everything; returns its result. Raises ``SwellError`` if it does not get that far."""
        with self._swell("run", "--workers", "1:2", "--start", "1", "--run-dir", self._folder, *self._script) as run:
            self._until(run, lambda step: True, "take its first step")
            self._set_pace(run)
            self._until(run, lambda step: step.samples >= 0.08 * self._total, "train on one worker")
            self._say("a second worker is requested: swell resize 2", "resize 2")
            ask(self._folder, "resize", workers=2)
            joined = self._until(run, lambda step: step.replicas == 2, "take in a second worker")
            self._say(f"it has started and joins: {self._gap(joined):.2f} s from step to step", "joins")
            goal = joined.samples + 0.15 * self._total
            self._until(run, lambda step: step.samples >= goal, "train on two workers")
            victim = next(worker for worker in ask(self._folder, "status")["workers"] if worker["rank"] == 0)
            os.kill(victim["pid"], signal.SIGKILL)
            self._say("the first worker is killed: kill -9", "kill -9")
            alone = self._until(run, lambda step: step.replicas == 1, "go on with the remaining worker")
            self._say(f"the other goes on alone: {self._gap(alone):.2f} s from step to step", "")
            late = 0.75 * self._total  # from here on the run is stopped even if no other worker has started
            pair = self._until(run, lambda step: step.replicas == 2 or step.samples >= late, "replace the lost worker")
            if pair.replicas == 2:
                self._say(f"a new worker replaces it: {self._gap(pair):.2f} s from step to step", "replaced")
            goal = max(pair.samples, alone.samples) + 0.1 * self._total
            self._until(run, lambda step: step.samples >= goal, "train on two workers again")
            self._say("the run is asked to stop: swell stop", "stop")
            ask(self._folder, "stop")
            self._end(run, EXIT_RESUME, "save and stop")
            latest = self.log.latest
            self._say(f"it has saved after step {latest.step if latest else 0:,} and exited", "")
        with self._swell("resume", self._folder, "--start", "2") as run:
            done = latest.samples if latest else 0
            self._until(run, lambda step: step.samples > done, "go on where it was stopped")
            self._say("it goes on where it was stopped: swell resume", "resume")
            self._end(run, 0, "finish")
        self._say("every epoch is done", "")
        return Result(**json.loads((self._folder / RESULT).read_text()))

    def _set_pace(self, run: _Running) -> None:
        """Slow the run down as far as this machine needs; a new worker starts about as fast as the first one."""
        pace = min(MOST_PACE, _START_SHARE * self._total / (time.monotonic() - run.began_at))
        draft = self._folder / f"{PACE}~"
        draft.write_text(str(pace))
        draft.replace(self._folder / PACE)

    def _swell(self, word: str, *line: Any) -> _Running:
        show = ["--show", "none"] if word == "run" else []
        command = [sys.executable, "-m", "swell", word, *show, *map(str, line)]
        return _Running(command, self._folder / "terminal.txt")

    def _say(self, text: str, mark: str) -> None:
        self._report(Moment(time.time(), text, mark))

    def _gap(self, step: Stepped) -> float:
        """Seconds from the previous step to this one."""
        times = [event.time for event in self.log.events if isinstance(event, Stepped) and event.step <= step.step]
        return times[-1] - times[-2]

    def _until(self, run: _Running, condition: Callable[[Stepped], bool], goal: str) -> Stepped:
        """Wait for the first step that meets the condition."""
        first = len(self.log.events)
        while True:
            ended = run.process.poll() is not None
            self.log.poll()
            for event in self.log.events[first:]:
                if isinstance(event, Stepped) and condition(event):
                    return event
                ended = ended or isinstance(event, RunEnded)
            first = len(self.log.events)
            if ended:
                raise self._failure(run, "the run ended too early", goal)
            if time.monotonic() > self._deadline:
                raise self._failure(run, f"the run took longer than {_LONGEST_S:.0f} s", goal)
            time.sleep(_POLL_S)

    def _end(self, run: _Running, status: int, goal: str) -> None:
        while run.process.poll() is None:
            self.log.poll()
            if time.monotonic() > self._deadline:
                raise self._failure(run, f"the run took longer than {_LONGEST_S:.0f} s", goal)
            time.sleep(_POLL_S)
        self.log.poll()
        if run.process.returncode != status:
            raise self._failure(run, f"the status of the run is {run.process.returncode}", f"{goal} with {status}")

    def _failure(self, run: _Running, problem: str, goal: str) -> SwellError:
        return SwellError(
            f"{problem}; expected it to {goal}. Its output is in {run.output} and in {self._folder / 'logs'}. On a "
            f"very busy machine new workers may not start in time: then run the demo again."
        )


class _Running:
    """A command that is ended with its ``with`` block."""

    def __init__(self, command: list[str], output: Path) -> None:
        self.output, self.began_at = output, time.monotonic()
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("ab") as file:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)

    def __enter__(self) -> _Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
