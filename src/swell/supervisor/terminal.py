"""Lines for the terminal, written by a thread of their own: output that nobody reads never holds up the caller."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

_MOST_CHARACTERS = 2**20  # that wait to be written; further lines are dropped and counted
_LAST_S = 2.0  # how long the last lines may take, from the last one that was written


class Terminal:
    """Shows lines through ``write``, which may block for as long as it likes.

    Lines wait in a buffer of bounded size. Those that find it full are dropped; a line says how many, once there is
    room again. A ``write`` that raises is not called again, because the terminal or the pipe is gone.
    """

    def __init__(self, write: Callable[[str], None], *, most: int = _MOST_CHARACTERS) -> None:
        self._write, self._most = write, most
        self._lines: deque[str] = deque()
        self._waiting = 0  # characters in the buffer
        self._missing = 0  # lines dropped since the last word about it
        self._written_at = time.monotonic()
        self._gone = self._closed = self._busy = False
        self._changed = threading.Condition()
        self.dropped = 0  # lines that were never shown
        threading.Thread(target=self._run, name="swell-terminal", daemon=True).start()

    @property
    def stuck_s(self) -> float:
        """For how long lines have waited and none was written; 0 where all were."""
        with self._changed:
            return time.monotonic() - self._written_at if self._busy and not self._gone else 0.0

    def show(self, line: str) -> None:
        """Show a line as soon as the terminal takes it; returns at once."""
        with self._changed:
            if self._gone:
                return
            if self._waiting + len(line) > self._most:
                self.dropped += 1
                self._missing += 1
                return
            self._put(self._gap())
            self._put(line)
            self._changed.notify_all()

    def close(self, *, last_s: float = _LAST_S) -> None:
        """Wait for the lines that wait, as long as one is written every ``last_s`` seconds."""
        with self._changed:
            self._put(self._gap())
            self._closed, self._written_at = True, time.monotonic()
            self._changed.notify_all()
            while (self._lines or self._busy) and not self._gone and time.monotonic() - self._written_at < last_s:
                self._changed.wait(0.05)

    def _gap(self) -> str:
        missing, self._missing = self._missing, 0
        return f"[swell] {missing} lines are not shown here, because nobody read the output" if missing else ""

    def _put(self, line: str) -> None:
        if line:
            self._lines.append(line)
            self._waiting += len(line)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                while not self._lines and not self._closed:
                    self._changed.wait()
                if not self._lines:
                    return
                line, self._busy = self._lines.popleft(), True
                self._written_at = time.monotonic()
            try:
                self._write(line)
            except (OSError, ValueError):  # the terminal or the pipe is gone; the run is not
                with self._changed:
                    self._gone = True
                    self._lines.clear()
                    self._changed.notify_all()
                return
            with self._changed:
                self._waiting -= len(line)
                self._written_at = time.monotonic()
