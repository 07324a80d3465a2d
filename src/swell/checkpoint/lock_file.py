"""A file that this process locks for as long as it lives: the kernel gives the lock up with the process."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
import weakref
from pathlib import Path

from swell.core.regular_files import open_regular

_POLL_S = 0.05
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_Key = tuple[int, int]  # device and inode

_held: weakref.WeakValueDictionary[_Key, LockFile] = weakref.WeakValueDictionary()  # in this process
_mutex = threading.Lock()
_hooked = False


class LockFile:
    """An exclusive lock on a file, which is created if need be and never removed.

    Within one process a second ``LockFile`` of the same file takes the lock over from the first. A forked child
    (a data-loading process) closes its copy at once; otherwise it would keep the lock when its parent is killed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.key: _Key = (0, 0)
        self._descriptor: int | None = None
        self._locked = False  # False also where the file system has no locks

    def take(self, *, wait_s: float) -> bool:
        """Lock the file; False where the file system has no locks. Raises ``BlockingIOError`` if it stays locked."""
        deadline = time.monotonic() + wait_s
        while True:
            descriptor = open_regular(self.path, os.O_RDWR | os.O_CREAT)
            try:
                locked = self._lock(descriptor)
            except BlockingIOError:
                os.close(descriptor)
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_POLL_S)
                continue
            except BaseException:
                os.close(descriptor)
                raise
            if self._is_current():
                return locked
            self.close()  # the file was deleted in between: lock the one that is there now

    def close(self) -> None:
        """Give the lock up; calling it again does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self.close()

    def _lock(self, descriptor: int) -> bool:
        status = os.fstat(descriptor)
        self.key = status.st_dev, status.st_ino
        with _mutex:
            before = _held.get(self.key)
            if before is not None and before._descriptor is not None:
                os.close(descriptor)
                before._descriptor, self._descriptor = None, before._descriptor
                self._locked = before._locked
            else:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._locked = True
                except OSError as error:
                    if error.errno not in _NO_LOCKS:
                        raise
                    self._locked = False
                self._descriptor = descriptor
            _held[self.key] = self
            _close_in_children()
        return self._locked

    def _is_current(self) -> bool:
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return False
        return (status.st_dev, status.st_ino) == self.key


def _close_in_children() -> None:
    global _hooked
    if not _hooked:
        _hooked = True
        os.register_at_fork(after_in_child=_forget_all)


def _forget_all() -> None:
    global _mutex
    _mutex = threading.Lock()  # another thread of the parent may have held it
    for lock in list(_held.values()):
        lock.close()
    _held.clear()
