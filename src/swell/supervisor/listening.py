"""The control socket's place: in the run folder, or in the private one; opened again where it vanishes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from swell.supervisor.control import Answer, ControlServer
from swell.supervisor.private_folder import PrivateFolder
from swell.supervisor.run_dir import RunDir


class Listening:
    """Keeps a control server that clients can find by the run's folder.

    ``opened`` and ``closed`` are told of each server, to wait for its callers and to stop doing so.
    """

    def __init__(
        self,
        run_dir: RunDir,
        private: PrivateFolder,
        answer: Answer,
        *,
        opened: Callable[[ControlServer], object],
        closed: Callable[[ControlServer], object],
    ) -> None:
        self._run_dir, self._private, self._answer = run_dir, private, answer
        self._opened, self._closed = opened, closed
        self._server: ControlServer | None = None
        self._path = Path()

    def ensure(self) -> None:
        """Open a server where there is none, or where the path of the present one is gone."""
        if self._server is not None and self._path.exists():
            return
        self.close()
        try:
            self._open(self._run_dir.control.resolve())
        except OSError:  # a file system without sockets, or one that is full
            self._open(self._private.path())

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._closed(self._server)
            self._server.close()
            self._server = None
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _open(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / "socket"
        with contextlib.suppress(FileNotFoundError):
            path.unlink()  # left behind by a supervisor that was killed; we hold the lock
        server = ControlServer(path, self._answer)
        try:
            self._run_dir.write_address(path)
        except OSError:
            if os.fspath(path.parent) != os.fspath(self._run_dir.control.resolve()):  # which is where clients look
                server.close()
                raise
        self._server, self._path = server, path
        self._opened(server)
