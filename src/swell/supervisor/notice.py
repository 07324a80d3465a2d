"""A notice asks a worker, or the whole run, to stop; an exit code answers it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

EXIT_RESUME = 143
"""The exit code that means "stopped on notice, everything is saved, resume me".

128 + SIGTERM, which schedulers read as a requested stop and not as a failure (AdaptDL uses it too). A process that
SIGTERM killed before it could save looks the same to a shell, but not to its parent, which sees a signal and no exit
code.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A request to stop after a step, save and exit."""

    source: str  # who asked: "SIGTERM", "file /tmp/stop", "supervisor"
    time: float  # when it came, in seconds since the epoch
    deadline: float | None = None  # when this worker must be gone, in seconds since the epoch; None when unknown
    leave: bool = False  # whether the others go on without this worker; otherwise the whole run stops

    def seconds_left(self, now: float | None = None) -> float:
        """Seconds until the deadline, below 0 when it has passed, infinite without one.

        >>> Notice(source="SIGTERM", time=100.0, deadline=130.0).seconds_left(now=110.0)
        20.0
        """
        if self.deadline is None:
            return math.inf
        return self.deadline - (time.time() if now is None else now)
