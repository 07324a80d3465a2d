"""A notice: somebody asked a worker, or the whole run, to stop; and the exit code that answers it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

EXIT_RESUME = 143
"""The exit code that says "stopped on notice, everything is saved, resume me".

128 + SIGTERM, which schedulers already read as "told to go" and not as a failure (AdaptDL uses it too). A process that
SIGTERM killed before it could save looks the same to a shell, but not to whoever waits for it: that one has no exit
code, only a signal.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A request to stop after a step, save and go."""

    source: str  # who asked: "SIGTERM", "file /tmp/stop", "supervisor"
    time: float  # when it came, in seconds since the epoch
    deadline: float | None = None  # when this worker must be gone, in seconds since the epoch; None when unknown
    leave: bool = False  # whether the others carry on without this worker; otherwise the whole run stops

    def seconds_left(self, now: float | None = None) -> float:
        """Seconds until the deadline, below 0 when it has passed, infinite without one.

        >>> Notice(source="SIGTERM", time=100.0, deadline=130.0).seconds_left(now=110.0)
        20.0
        """
        if self.deadline is None:
            return math.inf
        return self.deadline - (time.time() if now is None else now)
