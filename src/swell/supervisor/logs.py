"""Worker logs on the terminal: every new line, after its worker's rank."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from swell.core.harmless import harmless
from swell.core.regular_files import open_regular

_MOST_BYTES = 2**18  # read at one look
_LAST_READS = 16  # looks at the log of a worker that is gone


class LogFollower:
    """Shows the lines that workers have added to their log files since the last look.

    Only whole lines are shown, and a worker whose log cannot be opened or read has none. Of a line that was overwritten
    in place (a progress bar), the last state is shown. Control characters are spelled out, so that no worker can take
    over the terminal.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._files: dict[int, BinaryIO] = {}
        self._partial: dict[int, bytes] = {}

    def add(self, member: int, path: Path) -> None:
        """Follow a worker's log from its present end."""
        self._partial[member] = b""
        with contextlib.suppress(OSError):
            file = open(open_regular(path, os.O_RDONLY), "rb")  # noqa: SIM115
            file.seek(0, 2)
            self._files[member] = file

    def look(self, member: int, prefix: str | None) -> None:
        """Show a worker's new lines after ``prefix``; skip them if that is None."""
        *lines, self._partial[member] = (self._partial[member] + self._read(member)).split(b"\n")
        for line in lines:
            self._show_line(line, prefix)

    def remove(self, member: int, prefix: str | None) -> None:
        """Show the rest of a worker's log, including a last line without newline, and stop following it."""
        for _ in range(_LAST_READS):
            self.look(member, prefix)
        if member in self._files:
            self._files.pop(member).close()
        rest = self._partial.pop(member)
        if rest:
            self._show_line(rest, prefix)

    def _read(self, member: int) -> bytes:
        """A part of what is new, so that a worker that writes without end cannot keep the reader here."""
        if member in self._files:
            with contextlib.suppress(OSError):
                return self._files[member].read(_MOST_BYTES) or b""
        return b""

    def _show_line(self, line: bytes, prefix: str | None) -> None:
        if prefix is not None:
            text = line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
            self._show(f"{prefix}{harmless(text)}")
