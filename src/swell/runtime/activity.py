"""What the main thread of a worker does, as the worker's heartbeat reports it."""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_STEPS = 32  # whose median is the usual step
_FEWEST = 3  # steps in a world, before there is a usual one
_LOOK_S = 5.0  # after this time without progress, the processor time of the worker's processes is looked at
_POLL_S = 10.0  # a wait in which the main thread was not seen for this time is none: something else keeps it there
_IDLE = 0.05  # of one core, below which a worker counts as idle


class MainThread:
    """Signs of progress, and how long there was none. The main thread writes, the link's thread reads."""

    def __init__(self) -> None:
        self.progress = self.steps = 0
        self._doing = "starting"
        self._waiting, self._patience_s = 0, _POLL_S
        self._moved_at = self._stepped_at = self._waits_since = time.monotonic()
        self._steps_s: deque[float] = deque(maxlen=_STEPS)
        self._steps_here = 0
        self._looked: tuple[float, float] | None = None  # when, and the processor time of the session then
        self._idle = False

    def mark(self, doing: str) -> None:
        """A sign of progress, and what comes next: a key of ``stall.DOING``."""
        self._doing = doing
        self.progress += 1
        self._moved_at = time.monotonic()

    def step(self) -> None:
        """A step is about to be committed."""
        now = time.monotonic()
        if self._steps_here:
            self._steps_s.append(now - self._stepped_at)
        self._steps_here, self._stepped_at = self._steps_here + 1, now
        self.steps, self.progress = self.steps + 1, self.progress + 1
        self._moved_at = now

    def enter_world(self) -> None:
        """Another world was formed: its first steps may be slow, for example because the model is compiled."""
        self._steps_here = 0
        self._steps_s.clear()
        self.mark("training")

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside the block the main thread waits for other workers, and calls ``poll`` now and then."""
        self._waiting += 1
        self._waits_since = time.monotonic()
        try:
            yield
        finally:
            self._waiting -= 1
            self._moved_at = time.monotonic()

    @property
    def waited_s(self) -> float:
        """For how long the main thread has waited for others in an exchange; 0 where it does not."""
        return time.monotonic() - self._waits_since if self._waiting else 0.0

    def poll(self) -> None:
        """The main thread still waits. It would not say so if a signal's handler kept it."""
        self._moved_at = time.monotonic()

    @contextmanager
    def calling(self, longest_s: float) -> Iterator[None]:
        """Inside the block, within ``waiting``, the main thread is in a call that may take this long without a word."""
        self._patience_s = max(_POLL_S, longest_s)
        self._moved_at = time.monotonic()
        try:
            yield
        finally:
            self._patience_s = _POLL_S
            self._moved_at = time.monotonic()

    def slept(self, seconds: float) -> None:
        """The whole process was stopped for some time, which counts as nobody's."""
        self._moved_at += seconds
        self._stepped_at += seconds

    def report(self) -> dict[str, Any]:
        """The facts of a heartbeat."""
        still_s = max(0.0, time.monotonic() - self._moved_at)
        self._look(still_s)
        enough = len(self._steps_s) >= _FEWEST
        return {
            "progress": self.progress,
            "steps": self.steps,
            "doing": self._doing,
            "waiting": self._waiting > 0 and still_s < self._patience_s,
            "still_s": round(still_s, 3),
            "idle": self._idle,
            "usual_s": statistics.median(self._steps_s) if enough else None,
        }

    def _look(self, still_s: float) -> None:
        """Find out whether a worker that makes no progress computes; not where it does, because looking costs time."""
        if still_s < _LOOK_S:
            self._looked, self._idle = None, False
            return
        now, spent_s = time.monotonic(), session_processor_s()
        if self._looked is None:
            self._looked = now, spent_s
        elif now - self._looked[0] >= _LOOK_S:
            self._idle = (spent_s - self._looked[1]) / (now - self._looked[0]) < _IDLE
            self._looked = now, spent_s


def session_processor_s() -> float:
    """Processor seconds that this process and those it started have used; of this one alone where /proc is missing.

    A worker is the first of its session, so that its data-loading processes and commands that it runs belong to it.
    """
    session, ticks, total = os.getsid(0), os.sysconf("SC_CLK_TCK"), 0
    try:
        entries = [entry for entry in os.listdir("/proc") if entry.isdecimal()]
    except OSError:
        return time.process_time()
    for entry in entries:
        try:
            fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[3]) == session:
            total += int(fields[11]) + int(fields[12])
    return total / ticks
