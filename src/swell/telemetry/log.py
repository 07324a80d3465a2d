"""The run's log: one line of JSON for each event, written at once; torn lines do not hurt."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from swell.core.events import BatchChanged, Event, LogStarted, Stepped, to_json
from swell.core.regular_files import open_regular
from swell.errors import ConfigError
from swell.telemetry.decision_budget import DecisionBudget
from swell.telemetry.log_lines import SCHEMA, LineReader, Torn
from swell.telemetry.log_parts import PART_BYTES, older_parts, open_log, put_away
from swell.telemetry.step_lines import StepWriter

_LOGGER = logging.getLogger("swell")
_LONGEST_LINE = 2**24  # bytes
_TAIL = 2**18  # bytes at the end of a log that are searched for its last step


class EventLog:
    """Appends every event to a file as one line of JSON, and never disturbs training.

    Each line is written to the system at once, so a killed process loses none. If the file ends in the middle of a
    line (an earlier process was killed, a disk was full), the next event starts a new one. A full disk, a missing
    permission or a deleted folder costs one warning (logger ``swell``) and the events until it is fixed, not the run.
    ``may_write`` is asked before each event: where it is False another process writes the log now, and the events of
    this one are dropped. A link, a pipe or a device in the place of the file is not written to.

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
        self, path: str | os.PathLike[str], *, small: bool = False, may_write: Callable[[], bool] = lambda: True
    ) -> None:
        self.path = Path(path)
        self._may_write = may_write
        self._file: int | None = None
        self._torn = False  # whether the file may end in the middle of a line
        self._warned = False
        self._steps = StepWriter() if small else None
        self._decisions = DecisionBudget() if small else None
        try:
            self._open()
        except OSError as error:
            self._give_up(error)

    def emit(self, event: Event) -> None:
        if isinstance(event, Stepped) and self._steps is not None:
            self._append(self._steps.line(event))
            return
        text = to_json(event)
        if self._decisions is not None and isinstance(event, BatchChanged):
            chosen = self._decisions.take(event, len(text))
            if chosen is None:
                return
            text = text if chosen is event else to_json(chosen)
        elif self._decisions is not None:
            self._release()
        self._append(text)

    def close(self) -> None:
        self._release()
        self._close()

    def _release(self) -> None:
        held = None if self._decisions is None else self._decisions.release()
        if held is not None:
            self._append(to_json(held))

    def _append(self, text: str) -> None:
        line = text.encode() + b"\n"
        try:
            if self._file is None:
                self._open()
            assert self._file is not None
            state = os.fstat(self._file)
            if state.st_nlink == 0:  # deleted since: writing would have no effect
                raise FileNotFoundError(2, "the file was deleted", str(self.path))
            self._require()
            self._write(self._file, b"\n" + line if self._torn else line)
            if self._steps is not None and state.st_size > PART_BYTES:
                self._begin_part()
        except OSError as error:
            self._give_up(error)

    def _begin_part(self) -> None:
        """Put the file away and go on with an empty one."""
        self._close()
        put_away(self.path)
        if self._steps is not None:
            self._steps.forget()
        self._open()

    def _require(self) -> None:
        if not self._may_write():
            raise PermissionError(errno.EPERM, "another process writes this run's folder now", str(self.path))

    def _open(self) -> None:
        self._require()
        if not self._warned:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open_regular(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        size = os.fstat(self._file).st_size
        self._torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"
        if size == 0 and self._steps is not None:
            start = LogStarted(time=time.time(), schema=SCHEMA, part=len(older_parts(self.path)))
            self._write(self._file, to_json(start).encode() + b"\n")

    def _write(self, file: int, line: bytes) -> None:
        while line:
            self._torn = True
            line = line[os.write(file, line) :]  # a disk that fills up takes a part
        self._torn = False

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _give_up(self, error: OSError) -> None:
        """Warn once; the next event tries again."""
        if self._steps is not None:
            self._steps.forget()
        try:
            self._close()
        except OSError:
            self._file = None
        if not self._warned:
            self._warned = True
            _LOGGER.warning(
                "events cannot be written to %s (%s); training goes on without them. Free the disk or fix the folder, "
                "and the log continues.",
                self.path,
                error.strerror or error,
            )


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


def last_step(path: str | os.PathLike[str]) -> int:
    """The number of the last step in the log, read from its end; -1 if there is none."""
    try:
        with open_log(Path(path), follow=False) as file:
            for start in (max(0, os.path.getsize(path) - _TAIL), 0):
                file.seek(start)
                step = _last_step(file)
                if step >= 0 or start == 0:
                    break
    except OSError:
        return -1
    if step < 0 and (parts := older_parts(Path(path))):  # the file was begun just now
        steps = [event.step for event in read_events(parts[-1]) if isinstance(event, Stepped)]
        return steps[-1] if steps else -1
    return step


def _last_step(file: IO[bytes]) -> int:
    step, reader = -1, LineReader()
    for line in file:
        if line.startswith((b'{"event": "step"', b"[")):
            try:
                event = reader.read(line)
            except (Torn, ConfigError):
                continue
            step = event.step if isinstance(event, Stepped) else step
    return step


__all__ = ["SCHEMA", "EventLog", "last_step", "read_events"]
