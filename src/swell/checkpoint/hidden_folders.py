"""Folders that do not count: those being written and those being deleted, removed once their process is dead."""

from __future__ import annotations

import os
import time
import uuid
from contextlib import suppress
from pathlib import Path

from swell.checkpoint.disk import FolderLock, remove_folder

_WRITING, _DELETING = ".writing-", ".deleting-"
_DAY_S = 86400.0


class HiddenFolder:
    """A new folder below ``root``, locked against ``remove_leftovers`` until it is released.

    Fill it, sync it, rename ``path`` to what others look for, then release it.
    """

    def __init__(self, root: Path) -> None:
        self.path = root / f"{_WRITING}{uuid.uuid4().hex}"
        self._lock: FolderLock | None = None
        os.mkdir(self.path)
        with suppress(OSError):  # a file system without locks: the folder then counts as in use for a day
            self._lock = FolderLock(self.path)

    def release(self) -> None:
        """Give up the lock; calling it again does nothing."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def remove(self) -> None:
        """Release the folder and delete it, unless it was renamed."""
        self.release()
        remove_folder(self.path)


def remove_leftovers(root: Path) -> None:
    """Delete what dead processes were writing below ``root``, and what they were deleting."""
    with suppress(OSError):
        for folder in root.iterdir():
            if folder.name.startswith(_DELETING) or (folder.name.startswith(_WRITING) and _is_left_over(folder)):
                remove_folder(folder)


def revoke_drafts(root: Path) -> None:
    """Take away what other processes are writing below ``root``: the rename that would publish it then fails.

    Only for the process that has just become the folder's one writer. A draft that is begun later is refused by its
    own process, which asks for the right to write after it has made the folder and before it fills it.
    """
    with suppress(FileNotFoundError):
        for folder in root.iterdir():
            if folder.name.startswith(_WRITING):
                with suppress(OSError):  # published or given up in this moment
                    hide_and_remove(folder)


def hide_and_remove(folder: Path) -> None:
    """Delete a folder that others look for; one rename hides it first, so that a crash leaves none that is torn."""
    hidden = folder.with_name(f"{_DELETING}{uuid.uuid4().hex}")
    os.rename(folder, hidden)
    remove_folder(hidden)


def _is_left_over(folder: Path) -> bool:
    try:
        FolderLock(folder).release()
        return True
    except BlockingIOError:
        return False
    except OSError:
        return time.time() - folder.stat().st_mtime > _DAY_S
