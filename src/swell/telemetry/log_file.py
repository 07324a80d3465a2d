"""The newest file of a log: whole lines are added at its end, and trouble with the disk costs them, never the run."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from swell.core.events import LogStarted, to_json
from swell.core.regular_files import open_regular
from swell.telemetry.log_lines import SCHEMA
from swell.telemetry.log_parts import PART_BYTES, older_parts, put_away

_LOGGER = logging.getLogger("swell")


class LogFile:
    """Adds lines to a file; with ``parts`` it begins with the schema, and a full one is put away for the next.

    If the file ends in the middle of a line (an earlier process was killed, a disk was full), the next lines start on a
    new one. A full disk, a missing permission or a deleted folder costs one warning (logger ``swell``) and the lines
    until it is fixed. ``may_write`` is asked each time: where it is False another process writes the log now.
    """

    def __init__(self, path: Path, *, parts: bool, may_write: Callable[[], bool]) -> None:
        self.path, self._parts, self._may_write = path, parts, may_write
        self._file: int | None = None
        self._torn = False  # whether the file may end in the middle of a line
        self._warned = False
        try:
            self._open()
        except OSError as error:
            self._give_up(error)

    def append(self, lines: bytes) -> bool:
        """Write lines, each with its newline; whether the next ones will follow on them in the same file."""
        try:
            if self._file is None:
                self._open()
            assert self._file is not None
            state = os.fstat(self._file)
            if state.st_nlink == 0:  # deleted since: writing would have no effect
                raise FileNotFoundError(2, "the file was deleted", str(self.path))
            self._require()
            self._write(self._file, b"\n" + lines if self._torn else lines)
            if not self._parts or state.st_size <= PART_BYTES:
                return True
            self.close()
            put_away(self.path)
            self._open()
        except OSError as error:
            self._give_up(error)
        return False

    def close(self) -> None:
        """Close the file; a later line opens it again."""
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file)

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
        if size == 0 and self._parts:
            start = LogStarted(time=time.time(), schema=SCHEMA, part=len(older_parts(self.path)))
            self._write(self._file, to_json(start).encode() + b"\n")

    def _write(self, file: int, lines: bytes) -> None:
        while lines:
            self._torn = True
            lines = lines[os.write(file, lines) :]  # a disk that fills up takes a part
        self._torn = False

    def _give_up(self, error: OSError) -> None:
        """Warn once; the next lines try again."""
        with contextlib.suppress(OSError):
            self.close()
        if not self._warned:
            self._warned = True
            _LOGGER.warning(
                "events cannot be written to %s (%s); training goes on without them. Free the disk or fix the folder, "
                "and the log continues.",
                self.path,
                error.strerror or error,
            )
