"""Worker logs on the terminal: every new line, after its worker's rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


class LogFollower:
    """Shows the lines that workers have added to their log files since the last look.

    Only whole lines are shown. Of a line that was overwritten in place (a progress bar), the last state is shown.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._files: dict[int, BinaryIO] = {}
        self._partial: dict[int, bytes] = {}

    def add(self, member: int, path: Path) -> None:
        """Follow a worker's log from its present end."""
        file = path.open("rb")
        file.seek(0, 2)
        self._files[member] = file
        self._partial[member] = b""

    def look(self, member: int, prefix: str | None) -> None:
        """Show a worker's new lines after ``prefix``; skip them if that is None."""
        *lines, self._partial[member] = (self._partial[member] + self._files[member].read()).split(b"\n")
        for line in lines:
            self._show_line(line, prefix)

    def remove(self, member: int, prefix: str | None) -> None:
        """Show the rest of a worker's log, including a last line without newline, and stop following it."""
        self.look(member, prefix)
        self._files.pop(member).close()
        rest = self._partial.pop(member)
        if rest:
            self._show_line(rest, prefix)

    def _show_line(self, line: bytes, prefix: str | None) -> None:
        if prefix is not None:
            text = line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
            self._show(f"{prefix}{text}")
