"""When to decide again: at once where that is quick, and where it is slow not before as much time went to messages."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class DecisionPace:
    """A decision looks at every worker. With thousands of them, whose messages come in bursts, one decision after each
    handful would take a time that grows with the square of their number; so one decision follows many of them.

    >>> pace = DecisionPace()
    >>> pace.wait_s(now=10.0)
    0.0
    >>> pace.decided(began=10.0, ended=10.25)
    >>> pace.wait_s(now=10.25), pace.wait_s(now=10.5)
    (0.25, 0.0)
    """

    due_at: float = -math.inf

    def wait_s(self, now: float) -> float:
        """Seconds until the next decision is due."""
        return max(0.0, self.due_at - now)

    def decided(self, *, began: float, ended: float) -> None:
        """A decision took this long."""
        self.due_at = ended + (ended - began)
