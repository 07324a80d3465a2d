"""A log that is being written, read as it grows; what cannot be read is counted, not raised."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import IO

from swell.core.events import Event
from swell.errors import ConfigError
from swell.supervisor.run_dir import RunDir
from swell.telemetry.log_lines import SCHEMA, LineReader, Torn
from swell.telemetry.log_parts import older_parts, open_log, part_number

LOG_NAME = "events.jsonl"
_AT_ONCE = 8_000_000  # bytes of the newest file that one poll reads


class LogReader:
    """Reads a run's events from its folder or its log, as many as there are at each ``poll``.

    Folder and log may come later. It never blocks or locks the writer, and it never raises for what is in the file. A
    line that is still being written is read when it is complete; a torn one is passed over. Files that were put away
    meanwhile are read to their end.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._given = path
        self.path = find_log(path)
        self.torn = 0  # lines that were cut
        self.unknown: Counter[str] = Counter()  # complete lines that this version does not know, by kind
        self.events = 0  # that were read
        self._lines = LineReader()
        self._file: IO[bytes] | None = None
        self._rest = b""
        self._parts = 0  # number of the last part that was read to its end

    @property
    def schema(self) -> int:
        """The schema of the lines that were read last."""
        return self._lines.schema

    @property
    def problem(self) -> str | None:
        """What a person should know about lines that could not be read; None if there are none."""
        if self.schema > SCHEMA:
            return (
                f"{self.path} was written by a newer version of swell (schema {self.schema}, this version reads "
                f"{SCHEMA}), so some of it is not shown. Read it with that version."
            )
        if not self.events and (self.unknown or self.torn or self._rest[:1] not in b"{"):
            return f"{self.path} is not a log of swell: none of its lines is an event."
        if not self.unknown:
            return None
        kinds = ", ".join(f"{count} × {kind!r}" for kind, count in self.unknown.most_common(4))
        return f"{self.path} has lines that this version of swell does not know ({kinds}); they are not shown."

    def poll(self) -> list[Event]:
        """The events that were written since the last call; empty if there are none, or no log yet."""
        events: list[Event] = []
        if self._file is None:
            self.path = find_log(self._given)
            self._read_parts(events)
            self._open()
        while self._file is not None:
            self._read_newest(self._file, events)
            if not self._replaced(self._file):
                break
            self._read_newest(self._file, events)  # what was written between the two looks
            self.close()
            self._parts += 1
            self._take_lines(b"\n", events)  # a last line that was never finished
            self._read_parts(events)
            self._open()
        self.events += len(events)
        return events

    def close(self) -> None:
        """Close the file; ``poll`` opens it again where it is then."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self.close()

    def _open(self) -> None:
        try:
            self._file = open_log(self.path)
        except OSError:
            self._file = None
        else:
            self._rest = b""

    def _replaced(self, file: IO[bytes]) -> bool:
        """Whether the path is another file now."""
        try:
            return os.stat(self.path).st_ino != os.fstat(file.fileno()).st_ino
        except OSError:
            return False  # deleted, or about to be made again

    def _read_newest(self, file: IO[bytes], events: list[Event]) -> None:
        while piece := file.read(_AT_ONCE):
            self._take_lines(piece, events)

    def _read_parts(self, events: list[Event]) -> None:
        for part in older_parts(self.path):
            if part_number(part) > self._parts:
                self._rest = b""
                try:
                    with open_log(part) as file:
                        self._take_lines(file.read() + b"\n", events)
                except (OSError, EOFError):
                    self.torn += 1
                self._parts = part_number(part)

    def _take_lines(self, piece: bytes, events: list[Event]) -> None:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            try:
                event = self._lines.read(line)
            except Torn:
                self.torn += 1
            except ConfigError:
                self.unknown[_kind(line)] += 1
            else:
                if event is not None:
                    events.append(event)


def _kind(line: bytes) -> str:
    try:
        record = json.loads(line)
        return str(record["event"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return line[:20].decode(errors="replace")


def find_log(path: str | os.PathLike[str]) -> Path:
    """The log of a run by its folder or its own path; of a ``swell run`` whose job has another folder, the job's."""
    path = Path(path)
    if not path.is_dir():
        return path
    own = path / LOG_NAME
    return own if os.path.lexists(own) else RunDir(path).job_folder / LOG_NAME


def require_log(path: str | os.PathLike[str]) -> Path:
    """The log of a run by its folder or its own path; ``ConfigError`` in clear words if there is none."""
    path, log = Path(path), find_log(path)
    if not path.exists():
        raise ConfigError(f"{path} does not exist; expected the folder of a run. Check the path, or see `swell list`.")
    if not log.is_file():
        raise ConfigError(
            f"{path} has no {LOG_NAME}; expected the folder of a run. Give the run folder of a script's swell.Job; "
            f"`swell list` shows those below a folder."
        )
    return log
