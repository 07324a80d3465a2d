"""When the next worker process may be started, where starting one fails: after a pause that gets longer."""

from __future__ import annotations

import math
from dataclasses import dataclass

_FIRST_S, _LONGEST_S = 1.0, 60.0


@dataclass(slots=True)
class StartPause:
    """No process is started before ``at``.

    >>> pause = StartPause()
    >>> [pause.failed(now) or pause.at for now in (0.0, 1.0, 3.0)]
    [1.0, 1.0, 3.0]
    >>> pause.at
    7.0
    """

    at: float = -math.inf
    since: float = 0.0  # the first of the failures in a row
    failures: int = 0

    def failed(self, now: float) -> float:
        """A process could not be started; for how long that has been so. Several at one time count as one."""
        self.since = self.since if self.failures else now
        if now >= self.at:
            self.at = now + min(_LONGEST_S, _FIRST_S * 2.0**self.failures)
            self.failures += 1
        return now - self.since

    def succeeded(self) -> None:
        """A process was started and is ready."""
        self.at, self.failures = -math.inf, 0
