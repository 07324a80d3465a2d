"""What a process does when its script has ended, unless that was done before or the script ended with an error."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable


class AtExit:
    """Calls ``end`` once when the interpreter exits; not after an error, when other processes may still be waited for.

    The interpreter is whole then: threads that were not started as daemons have ended, all others still run. A process
    that was forked from this one calls nothing, because it has the objects of this one but not its threads.
    """

    def __init__(self, end: Callable[[], None]) -> None:
        self._function, self._process = end, os.getpid()
        atexit.register(self.run)

    def cancel(self) -> None:
        """Do nothing at exit, because it was done before."""
        atexit.unregister(self.run)

    def run(self) -> None:
        """The script has ended."""
        if os.getpid() == self._process and getattr(sys, "last_value", None) is None:
            self._function()
