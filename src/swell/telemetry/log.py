"""The run's log: one line of JSON for each event, and steps a few at a time; torn lines do not hurt."""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from swell.core.events import BatchChanged, Event, RunStarted, Stepped, to_json
from swell.errors import ConfigError
from swell.telemetry.decision_budget import DecisionBudget
from swell.telemetry.log_file import LogFile
from swell.telemetry.log_lines import SCHEMA, LineReader, Torn
from swell.telemetry.log_parts import older_parts, open_log
from swell.telemetry.step_lines import StepWriter

HOLD_S = 0.25  # how long a step is held before it is written
MOST_HELD = 256  # steps, after which they are written at once
_AT_ONCE = 64  # steps in one write, so that a file that is put away is not much larger than it should be
_LONGEST_LINE = 2**24  # bytes
_TAIL = 2**18  # bytes at the end of a log that are searched for its last step


class EventLog:
    """Appends every event to a file as one line of JSON, and never disturbs training.

    Steps are held for at most a quarter of a second and written together, by a thread of their own: a line for itself
    would cost a step of a few milliseconds some percent. Every other event is written at once, after the steps before
    it. So the lines are in the order of the events, and a process that is killed loses at most the steps of its last
    quarter of a second. ``flush`` writes what is held; ``close`` and the end of the interpreter do too, after an error
    as well. A process that is forked from this one begins with nothing held. With ``at_once`` steps are not held: who
    strikes a run must know every step that it had committed.

    What the disk refuses costs one warning, not the run: see ``LogFile``. ``may_write`` is asked when lines are
    written: where it is False another process writes the log now, and the events of this one are dropped. A link, a
    pipe or a device in the place of the file is not written to.

    A ``small`` log grows by less than 1 MB an hour at ten steps a second: most steps are short lines (``step_lines``),
    frequent changes of batch are written as one, and the file is put away compressed at 4 MB (``log_parts``).

    >>> from swell.core.events import Warned
    >>> log = EventLog(getfixture("tmp_path") / "events.jsonl")
    >>> log.emit(Warned(time=0.0, message="slow disk"))
    >>> log.close()
    >>> list(read_events(log.path))
    [Warned(time=0.0, message='slow disk')]
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        small: bool = False,
        at_once: bool = False,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self.path, self._at_once = Path(path), at_once
        self._file = LogFile(self.path, parts=small, may_write=may_write)
        self._steps = StepWriter() if small else None
        self._decisions = DecisionBudget() if small else None
        self._begin()

    def emit(self, event: Event) -> None:
        if os.getpid() != self._process:
            self._begin()
        if isinstance(event, Stepped):
            self._held.append(event)  # without the lock: training must not wait for a slow disk
            if self._at_once or len(self._held) >= MOST_HELD:  # or the thread does not keep up
                self.flush()
            elif self._stop is None:
                self._start()
            return
        with self._lock:
            self._write_steps()
            self._write(event)

    def flush(self) -> None:
        """Write the steps that are held."""
        if os.getpid() != self._process:
            self._begin()
        with self._lock:
            self._write_steps()

    def close(self) -> None:
        """Write what is held, and close the file; a later event opens it again."""
        self.flush()
        if self._stop is not None:
            self._stop.set()
            self._stop = None
            atexit.unregister(self.flush)
        with self._lock:
            held = None if self._decisions is None else self._decisions.release()
            if held is not None:
                self._append(lambda: [to_json(held)])
            self._file.close()

    def _begin(self) -> None:
        """Hold nothing, and have no thread: at first, and in a forked process, whose parent writes what it held."""
        self._process = os.getpid()
        self._held: deque[Stepped] = deque()
        self._lock = threading.RLock()  # on the file and on what decides about its lines
        self._stop: threading.Event | None = None  # ends the thread that writes steps; None where there is none

    def _start(self) -> None:
        self._stop = threading.Event()
        atexit.register(self.flush)
        threading.Thread(target=self._write_now_and_then, args=(self._stop,), name="swell-log", daemon=True).start()

    def _write_now_and_then(self, stop: threading.Event) -> None:
        while not stop.wait(HOLD_S):
            if self._held:
                self.flush()

    def _write_steps(self) -> None:
        line = to_json if self._steps is None else self._steps.line
        while self._held:
            count = min(len(self._held), _AT_ONCE)
            self._append(lambda: [line(self._held.popleft()) for _ in range(count)])  # noqa: B023

    def _write(self, event: Event) -> None:
        lines = [to_json(event)]
        if self._decisions is not None and isinstance(event, BatchChanged):
            chosen = self._decisions.take(event, len(lines[0]))
            if chosen is None:
                return
            lines = lines if chosen is event else [to_json(chosen)]
        elif self._decisions is not None and (held := self._decisions.release()) is not None:
            lines.insert(0, to_json(held))
        self._append(lambda: lines)

    def _append(self, lines: Callable[[], list[str]]) -> None:
        """Write lines; after one that may be missing, the next step is whole."""
        follows = False
        try:
            follows = self._file.append(("\n".join(lines()) + "\n").encode())
        finally:  # also where a signal's handler raises in the middle of it
            if not follows and self._steps is not None:
                self._steps.forget()


def read_events(path: str | os.PathLike[str], *, follow: bool = True) -> Iterator[Event]:
    """The events of a log in the order they were written, those in older files of it first; torn lines are skipped.

    A line is torn, and not complete JSON, if a process was killed or the disk was full while it was written. A complete
    line that is no event is a ``ConfigError`` with its number: the file is not a log, or is from a newer version. So is
    a line without end, and what is no regular file: a pipe would wait, a device may do anything. Without ``follow`` the
    path may not be a link either, for a file that was found in a folder and not named by the user.
    """
    path, reader = Path(path), LineReader()
    for part in [*older_parts(path), path]:
        try:
            file = open_log(part, follow=follow)
        except OSError as error:
            raise ConfigError(
                f"log {os.fspath(part)!r} cannot be read ({error.strerror or error}); expected the events.jsonl of a "
                f"run. Check the path."
            ) from error
        with file:
            for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), b""), start=1):  # noqa: B023
                try:
                    if len(line) == _LONGEST_LINE:
                        raise ConfigError(
                            f"the line has {_LONGEST_LINE} bytes or more; expected an event. Check that this is the "
                            f"log of a run."
                        )
                    event = reader.read(line)
                except Torn:
                    continue
                except ConfigError as error:
                    raise ConfigError(f"{os.fspath(part)}, line {number}: {error}") from error
                if event is not None:
                    yield event


def last_samples(path: str | os.PathLike[str]) -> int:
    """How many samples the run had committed at the end of its log, read from there; -1 if no line says so.

    It is the last step's, or the last start's: a run that was resumed may stand before steps that are in its log.
    """
    try:
        with open_log(Path(path), follow=False) as file:
            for start in (max(0, os.path.getsize(path) - _TAIL), 0):
                file.seek(start)
                samples = _last_samples(file)
                if samples >= 0 or start == 0:
                    break
    except OSError:
        return -1
    if samples < 0 and (parts := older_parts(Path(path))):  # the file was begun just now
        places = [event.samples for event in read_events(parts[-1]) if isinstance(event, (Stepped, RunStarted))]
        return places[-1] if places else -1
    return samples


def _last_samples(file: IO[bytes]) -> int:
    samples, reader = -1, LineReader()
    for line in file:
        if line.startswith((b'{"event": "step"', b'{"event": "run"', b"[")):
            try:
                event = reader.read(line)
            except (Torn, ConfigError):
                continue
            samples = event.samples if isinstance(event, (Stepped, RunStarted)) else samples
    return samples


__all__ = ["SCHEMA", "EventLog", "last_samples", "read_events"]
