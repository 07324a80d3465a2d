"""The control socket of a run: its owner asks and commands, the supervisor answers."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from swell.errors import ConfigError, SwellError, WorldError
from swell.supervisor.channel import Channel
from swell.supervisor.run_dir import RunDir

Answer = Callable[[Mapping[str, Any]], dict[str, Any]]
_LONGEST_SOCKET_PATH = 100  # the kernel's limit is 108 bytes on Linux and 104 on macOS


class ControlServer:
    """A Unix socket that only its owner can open, and that also checks who calls.

    One descriptor is kept in reserve for a caller, so that a supervisor which has used up all others still answers.
    """

    def __init__(self, path: Path, answer: Answer) -> None:
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            with _short(path) as address:
                self._listener.bind(address)
        except BaseException:
            self._listener.close()
            raise
        finally:
            os.umask(before)
        self._listener.listen(16)
        self._listener.setblocking(False)
        self._reserve: int | None = None
        self._keep_reserve()

    def fileno(self) -> int:
        """The descriptor to wait on for callers."""
        return self._listener.fileno()

    def accept(self) -> Channel | None:
        """The next caller; None if there is none, or if it is another user."""
        self._keep_reserve()
        try:
            end, _ = self._listener.accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._use_reserve():
                return None
            try:
                end, _ = self._listener.accept()
            except OSError:
                return None
        end.setblocking(False)
        if _user(end) not in (os.getuid(), 0):
            end.close()
            return None
        return Channel(end)

    def serve(self, caller: Channel) -> bool:
        """Answer a caller's requests; False when it has hung up or sends nonsense."""
        try:
            messages = caller.receive()
        except WorldError:
            return False
        for message in messages or ():
            try:
                reply = {"ok": True, **self._answer(message)}
            except SwellError as error:
                reply = {"ok": False, "error": str(error)}
            caller.send({"say": "reply", **reply})
        return messages is not None

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()
        self._use_reserve()

    def _keep_reserve(self) -> None:
        if self._reserve is None:
            with contextlib.suppress(OSError):
                self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _use_reserve(self) -> bool:
        reserve, self._reserve = self._reserve, None
        if reserve is not None:
            os.close(reserve)
        return reserve is not None


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """A path of this socket that is short enough for the kernel, inside the block."""
    if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
        yield str(path)
        return
    if not Path("/proc/self/fd").is_dir():
        raise ConfigError(
            f"the control socket is {path}, a path of {len(os.fsencode(path))} bytes; expected at most "
            f"{_LONGEST_SOCKET_PATH}. Give a --run-dir with a shorter path."
        )
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _user(end: socket.socket) -> int:
    if sys.platform == "linux":
        _, user, _ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        return user
    return os.getuid()  # the modes of the socket and of its folder keep others out


def ask(run_dir: str | Path, word: str, *, timeout_s: float = 10.0, **facts: Any) -> dict[str, Any]:
    """Ask the supervisor of a run and return its answer.

    Words are ``status``, ``resize`` (workers, kill), ``stop`` (grace_s) and ``chaos`` (signal, and rank or member).
    Raises ``ConfigError`` if the run is not active or the supervisor refuses.
    """
    path = RunDir(run_dir).find_socket()
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end.settimeout(timeout_s)
    try:
        with _short(path) as address:
            end.connect(address)
    except OSError as error:
        end.close()
        raise ConfigError(
            f"the supervisor of {run_dir} does not answer ({error}); expected an active run. If it was killed, "
            f"bring the run back with `swell resume {run_dir}`."
        ) from error
    end.settimeout(None)
    channel = Channel(end)
    try:
        channel.send({"say": word, **facts})
        while True:
            ready, _, _ = select.select([channel.fileno()], [], [], timeout_s)
            messages = channel.receive() if ready else None
            if messages is None:
                raise ConfigError(
                    f"the supervisor of {run_dir} is silent; expected an answer to {word!r} within {timeout_s:g} s. "
                    f"Ask again, or look at its logs."
                )
            for reply in messages:
                if not reply.get("ok"):
                    raise ConfigError(str(reply.get("error", "the supervisor refused without a reason")))
                return {key: value for key, value in reply.items() if key not in ("say", "ok")}
    finally:
        channel.close()
