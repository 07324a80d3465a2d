"""Cut the connections of a process group at once, even while references to it exist."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_Identity = tuple[int, int, int]  # file descriptor, device and inode: a descriptor that was reused has another inode


class Connections:
    """The TCP connections opened inside ``recorded``, to be cut when their peers are given up.

    gloo closes its sockets when the last reference to a process group goes; ``abort`` does not close them (torch
    2.13). There may be references anywhere: in a DDP wrapper, an unfinished ``Work``, a traceback. Until then the
    neighbours of a survivor wait for data that never comes. ``sever`` shuts the sockets down in the kernel, so every
    operation on them fails at once, in this process and at the peers; data already sent still arrives.
    """

    def __init__(self) -> None:
        self._sockets: set[_Identity] = set()

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the connections that are new at the end of the block, also if it fails."""
        before = set(_open_sockets())
        try:
            yield
        finally:
            self._sockets |= set(_open_sockets()) - before

    def sever(self) -> int:
        """Shut down the recorded connections that are still open; returns their number."""
        count = 0
        for descriptor, *identity in self._sockets:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
                status = os.fstat(copy.fileno())
                internet = copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM
                if [status.st_dev, status.st_ino] == identity and internet:
                    copy.getpeername()  # fails on a listening socket, which has no peer
                    copy.shutdown(socket.SHUT_RDWR)
                    count += 1
        self._sockets.clear()
        return count


def _open_sockets() -> Iterator[_Identity]:
    folder = Path("/proc/self/fd") if Path("/proc/self/fd").is_dir() else Path("/dev/fd")
    for entry in os.listdir(folder):
        with contextlib.suppress(OSError, ValueError):
            status = os.fstat(int(entry))
            if stat.S_ISSOCK(status.st_mode):
                yield int(entry), status.st_dev, status.st_ino
