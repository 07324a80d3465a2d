"""The run's log: one line of JSON for each event, written at once; torn lines do not hurt."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from swell.core.events import Event, from_json, to_json
from swell.errors import ConfigError

_LOGGER = logging.getLogger("swell")
_TAIL = 2**16  # bytes at the end of a log that are searched for its last step


class EventLog:
    """Appends every event to a file as one line of JSON, and never disturbs training.

    Each line is written to the system at once, so a killed process loses none. If the file ends in the middle of a
    line (an earlier process was killed, a disk was full), the next event starts a new one. A full disk, a missing
    permission or a deleted folder costs one warning (logger ``swell``) and the events until it is fixed, not the run.

    >>> from swell.core.events import Warned
    >>> log = EventLog(getfixture("tmp_path") / "events.jsonl")
    >>> log.emit(Warned(time=0.0, message="slow disk"))
    >>> log.close()
    >>> list(read_events(log.path))
    [Warned(time=0.0, message='slow disk')]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file: int | None = None
        self._torn = False  # whether the file may end in the middle of a line
        self._warned = False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
        except OSError as error:
            self._give_up(error)

    def emit(self, event: Event) -> None:
        line = to_json(event).encode() + b"\n"
        try:
            if self._file is None:
                self._open()
            assert self._file is not None
            if os.fstat(self._file).st_nlink == 0:  # deleted since: writing would have no effect
                raise FileNotFoundError(2, "the file was deleted", str(self.path))
            self._write(self._file, b"\n" + line if self._torn else line)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> None:
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._file).st_size
        self._torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"

    def _write(self, file: int, line: bytes) -> None:
        while line:
            self._torn = True
            line = line[os.write(file, line) :]  # a disk that fills up takes a part
        self._torn = False

    def _give_up(self, error: OSError) -> None:
        """Warn once; the next event tries again."""
        try:
            self.close()
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


def read_events(path: str | os.PathLike[str]) -> Iterator[Event]:
    """The events of a log in the order they were written; torn lines are skipped.

    A line is torn, and not complete JSON, if a process was killed or the disk was full while it was written. A complete
    line that is no event is a ``ConfigError`` with its number: the file is not a log, or is from a newer version.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise ConfigError(
            f"log {os.fspath(path)!r} cannot be read ({error.strerror or error}); expected the events.jsonl of a run. "
            f"Check the path."
        ) from error
    with file:
        for number, line in enumerate(file, start=1):
            text = line.decode(errors="replace").strip()
            if not text or _is_torn(text):
                continue
            try:
                yield from_json(text)
            except ConfigError as error:
                raise ConfigError(f"{os.fspath(path)}, line {number}: {error}") from error


def last_step(path: str | os.PathLike[str]) -> int:
    """The number of the last step in the log, read from its end; -1 if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - _TAIL))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return -1
    for line in reversed(lines):
        if '"event": "step"' in line and not _is_torn(line):
            return int(json.loads(line)["step"])
    return -1


def _is_torn(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return True
    return False
