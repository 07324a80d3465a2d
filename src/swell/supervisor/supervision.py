"""The supervisor of a worker, as others can find out whether it lives."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from swell.core.regular_files import open_regular


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """One start of a supervisor; its workers may follow one another as writers of a run while it lives."""

    identity: str  # of the supervisor's process, which may be on another machine
    lock: str  # the file that it keeps locked
    keeper: str = ""  # the identity of the process on this machine that acts for it; empty where that is itself

    @property
    def local(self) -> str:
        """The identity of a process of this machine that lives only while the supervisor does, or a little longer."""
        return self.keeper or self.identity


def is_locked(path: str | Path) -> bool:
    """Whether a process holds a lock on the file; False if there is no such file or it cannot be told."""
    try:
        descriptor = open_regular(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
