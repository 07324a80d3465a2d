"""The supervisor's private folder for rendezvous files: outside the run folder, and made again where it vanishes.

It is in the temporary directory, because a full disk or a network file system under the run folder must not keep
workers from meeting. Cleaners may remove it there at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "swell-"
LOCK_NAME = "lock"


class PrivateFolder:
    """A folder that only its owner can enter; ``path`` makes it again if it is gone, possibly under another name.

    A lock in it, which the kernel releases when the process dies, tells it from the left-over of a supervisor that was
    killed. ``spare`` is the folder in which it is made where the temporary directory takes none.
    """

    def __init__(self, spare: Path) -> None:
        self.present: Path | None = None  # where it was made last; it may be gone
        self._spare = spare
        self._lock: int | None = None

    def path(self) -> Path:
        """The folder, usable now."""
        if self.present is None or not (self.present / LOCK_NAME).exists():
            self._create()
        assert self.present is not None
        return self.present

    def close(self) -> None:
        """Remove it."""
        if self.present is not None:
            shutil.rmtree(self.present, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
        self.present = self._lock = None

    def _create(self) -> None:
        self.close()
        try:
            self.present = Path(tempfile.mkdtemp(prefix=_PREFIX))
            self._take_lock(self.present)
        except OSError:  # no temporary directory, or one that is full
            self.close()
            self.present = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._spare))
            self._take_lock(self.present)

    def _take_lock(self, folder: Path) -> None:
        hidden = folder / f".{LOCK_NAME}"  # nobody looks for the lock before it is held
        self._lock = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        hidden.rename(folder / LOCK_NAME)


def remove_leftovers(*parents: Path) -> list[Path]:
    """Remove the private folders of supervisors that were killed, of this user; returns them."""
    removed = []
    for parent in {Path(tempfile.gettempdir()), *parents}:
        for folder in parent.glob(f"{_PREFIX}*"):
            if _is_left_over(folder):
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder)
    return removed


def _is_left_over(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        if folder.is_symlink() or not folder.is_dir() or folder.stat().st_uid != os.getuid():
            return False
        lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        finally:
            os.close(lock)
    return False
