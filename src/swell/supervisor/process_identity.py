"""Which process it is, beyond its number: a number is used again, a start time on one boot of the machine is not."""

from __future__ import annotations

import os
from pathlib import Path

_DEAD = ("Z", "X")  # the states of a process that has ended and that nobody has asked for its status


def identity_of(pid: int) -> str | None:
    """Names a running process for as long as the machine runs; None if there is no such process.

    >>> identity_of(os.getpid()) == identity_of(os.getpid())
    True
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None if Path("/proc/self/stat").exists() else _without_proc(pid)
    state, started = fields[0], fields[19]
    return None if state in _DEAD else f"{pid}-{started}-{boot}"


def _without_proc(pid: int) -> str | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass  # of another user
    return str(pid)


def own_identity() -> str:
    """Names this process."""
    return identity_of(os.getpid()) or str(os.getpid())


def is_running(identity: str) -> bool:
    """Whether the process that has this identity still runs, seen from this machine."""
    number = identity.partition("-")[0]
    return number.isdecimal() and identity_of(int(number)) == identity


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped (SIGSTOP); False where that cannot be told."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False
