"""Sources of notices: signals, a file that appears, or a function."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from swell.errors import ConfigError
from swell.supervisor.notice import Notice

SIGNALS = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT")


Watch = Callable[[], "Notice | bool | None"]


class Notices:
    """Takes notices from signals, a file that appears, or a callable; installed only inside its ``with`` block.

    A signal handler only sets a flag, so nothing is interrupted and every step is complete. The first Ctrl-C is a
    notice, the second ends the process at once. Forked child processes (data-loading workers) take no notices: other
    signals have their default effect on them, and a Ctrl-C that the terminal sends to all does not break the loader.

    >>> with Notices(signals=["SIGUSR1"], grace_s=30) as notices:
    ...     os.kill(os.getpid(), signal.SIGUSR1)
    ...     notices.notice().source
    'SIGUSR1'
    """

    def __init__(
        self,
        *,
        signals: Sequence[str] = SIGNALS,
        file: str | Path | None = None,
        watch: Watch | None = None,
        grace_s: float | None = None,
        every_s: float = 1.0,
    ) -> None:
        unknown = [name for name in signals if name not in SIGNALS]
        if unknown:
            raise ConfigError(f"signals contains {', '.join(unknown)}; expected some of {', '.join(SIGNALS)}.")
        if grace_s is not None and grace_s < 0:
            raise ConfigError(f"grace_s is {grace_s}; expected the seconds from a notice to its deadline, 0 or more.")
        self._signals = tuple(signals)
        self._file = None if file is None else Path(file)
        self._watch = watch
        self._grace_s = grace_s
        self._every_s = every_s
        self._polled_at = -math.inf
        self._notice: Notice | None = None
        self._previous: dict[int, Any] = {}
        self._pid = 0

    def notice(self) -> Notice | None:
        """The first notice, or None. Reads a flag; polls file and callable at most once every ``every_s`` seconds."""
        if self._notice is None and (self._file is not None or self._watch is not None):
            now = time.monotonic()
            if now - self._polled_at >= self._every_s:
                self._polled_at = now
                self._poll()
        return self._notice

    def install(self) -> Notices:
        """Take over the signals; possible in the main thread only."""
        if self._signals and threading.current_thread() is not threading.main_thread():
            raise ConfigError(
                f"the thread is {threading.current_thread().name!r}; expected the main thread, because signals can be "
                f"taken there only. Pass signals=() and give a file or a callable to watch instead."
            )
        self._pid = os.getpid()
        for name in self._signals:
            number = getattr(signal, name)
            self._previous.setdefault(number, signal.signal(number, self._handle))
        return self

    def uninstall(self) -> None:
        """Restore the previous signal handlers."""
        for number, previous in self._previous.items():
            signal.signal(number, signal.SIG_DFL if previous is None else previous)
        self._previous.clear()

    def __enter__(self) -> Notices:
        return self.install()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.uninstall()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)  # in C, so the next Ctrl-C works even inside a long call
        if os.getpid() != self._pid:
            if number != signal.SIGINT:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        self._take(signal.Signals(number).name)

    def _poll(self) -> None:
        if self._file is not None and self._file.exists():
            self._take(f"file {self._file}")
        elif self._watch is not None:
            answer = self._watch()
            if isinstance(answer, Notice):
                self._notice = answer
            elif answer:
                self._take(getattr(self._watch, "__name__", type(self._watch).__name__))

    def _take(self, source: str) -> None:
        if self._notice is None:
            now = time.time()
            deadline = None if self._grace_s is None else now + self._grace_s
            self._notice = Notice(source=source, time=now, deadline=deadline)
