"""Worker logs on the terminal: every new line, with its worker's rank before it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


class LogFollower:
    """Reads what workers have added to their log files since it last looked.

    Only whole lines are shown; of a line that was overwritten in place (a progress bar) the last state.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._files: dict[int, BinaryIO] = {}
        self._partial: dict[int, bytes] = {}

    def add(self, member: int, path: Path) -> None:
        """Follow a worker's log from where it ends now."""
        file = path.open("rb")
        file.seek(0, 2)
        self._files[member] = file
        self._partial[member] = b""

    def look(self, member: int, prefix: str | None) -> None:
        """Show a worker's new lines after ``prefix``, or pass over them where that is None."""
        *lines, self._partial[member] = (self._partial[member] + self._files[member].read()).split(b"\n")
        for line in lines:
            self._show_line(line, prefix)

    def remove(self, member: int, prefix: str | None) -> None:
        """Show the rest of a worker's log, a last line without an end included, and follow it no more."""
        self.look(member, prefix)
        self._files.pop(member).close()
        rest = self._partial.pop(member)
        if rest:
            self._show_line(rest, prefix)

    def _show_line(self, line: bytes, prefix: str | None) -> None:
        if prefix is not None:
            text = line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
            self._show(f"{prefix}{text}")
