"""A sign of life in a file's time, for file systems where a lock does not reach the other machines."""

from __future__ import annotations

import os
import threading
import time
import uuid
from pathlib import Path

BEAT_S = 5.0
_BEATS = 3  # a writer without one for this number of periods counts as dead


class Heartbeat:
    """Renews the time of a file every few seconds, in a thread of its own, until it is stopped."""

    def __init__(self, descriptor: int, *, every_s: float = BEAT_S) -> None:
        self._descriptor = os.dup(descriptor)
        self._over = threading.Event()
        self._every_s = every_s
        self._thread = threading.Thread(target=self._run, name="swell-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for the thread."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._over.wait(self._every_s):
                try:
                    os.utime(self._descriptor)
                except OSError:
                    continue  # the server is away; it may come back
        finally:
            os.close(self._descriptor)


def is_beating(path: Path, *, every_s: float = BEAT_S) -> bool:
    """Whether somebody renews the time of the file; waits for a few periods unless its time is old already.

    Times are compared with one another only, all of them given by the file system: clocks of machines differ.
    """
    before = _time_of(path)
    if before is None or _now_there(path.parent) - before > _BEATS * every_s:
        return False
    deadline = time.monotonic() + _BEATS * every_s
    while time.monotonic() < deadline:
        time.sleep(min(0.5, every_s / 4))
        if _time_of(path) != before:
            return True
    return False


def _time_of(path: Path) -> float | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening asks an NFS server again
    except OSError:
        return None
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)


def _now_there(folder: Path) -> float:
    """The time of the file system that holds the folder."""
    probe = folder / f".now-{uuid.uuid4().hex}"
    try:
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return 0.0  # not known: wait and see
    try:
        os.write(descriptor, b"\n")
        os.fsync(descriptor)
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        probe.unlink(missing_ok=True)
