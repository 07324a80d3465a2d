"""The control socket of a run: its owner asks and commands, the supervisor answers."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import ssl
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from swell.errors import ConfigError, SwellError, WorldError
from swell.supervisor.channel import Channel
from swell.supervisor.interfaces import is_address, parse_address
from swell.supervisor.run_dir import RunDir
from swell.supervisor.run_token import find_token
from swell.supervisor.secure_channel import RunIdentity

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
            caller.send(reply_to(message, self._answer))
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


def reply_to(request: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    """The message that answers a request, also where it is refused."""
    try:
        return {"say": "reply", "ok": True, **answer(request)}
    except SwellError as error:
        return {"say": "reply", "ok": False, "error": str(error)}


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


def ask(
    run: str | Path, word: str, *, timeout_s: float = 10.0, token_file: str | None = None, **facts: Any
) -> dict[str, Any]:
    """Ask the supervisor of a run and return its answer; ``run`` is its folder, or the address at which it listens.

    Words are ``status``, ``resize`` (workers, kill), ``stop`` (grace_s) and ``chaos`` (signal, and rank or member).
    From another machine the run's token is needed: in ``token_file``, in ``SWELL_TOKEN``, or in the run's folder.
    Raises ``ConfigError`` if the run is not active or the supervisor refuses.
    """
    end = _connect(run, timeout_s=timeout_s, token_file=token_file)
    end.settimeout(None if not isinstance(end, ssl.SSLSocket) else 0.0)
    channel = Channel(end)
    try:
        channel.send({"say": word, **facts})
        while True:
            ready, _, _ = select.select([channel.fileno()], [], [], timeout_s)
            messages = channel.receive() if ready else None
            if messages is None:
                raise ConfigError(
                    f"the supervisor of {run} is silent; expected an answer to {word!r} within {timeout_s:g} s. "
                    f"Ask again, or look at its logs."
                )
            for reply in messages:
                if not reply.get("ok"):
                    raise ConfigError(str(reply.get("error", "the supervisor refused without a reason")))
                return {key: value for key, value in reply.items() if key not in ("say", "ok")}
    finally:
        channel.close()


def _connect(run: str | Path, *, timeout_s: float, token_file: str | None) -> socket.socket:
    """A connection to a run's supervisor: over the socket in its folder, or over the network."""
    folder = Path(run)
    if not os.path.exists(folder) and is_address(str(run)):
        return _connect_to(str(run), find_token(token_file), timeout_s=timeout_s)
    elsewhere = RunDir(folder).listening()
    try:
        path = RunDir(folder).find_socket()
        return _connect_here(path, timeout_s=timeout_s)
    except (OSError, ConfigError) as error:
        if elsewhere is not None:  # the supervisor of a folder that is shared may be on another machine
            with contextlib.suppress(ConfigError):
                return _connect_to(elsewhere, find_token(token_file, run_dir=folder), timeout_s=timeout_s)
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"the supervisor of {run} does not answer ({error}); expected an active run. If it was killed, "
            f"bring the run back with `swell resume {run}`."
        ) from error


def _connect_here(path: Path, *, timeout_s: float) -> socket.socket:
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end.settimeout(timeout_s)
    try:
        with _short(path) as address:
            end.connect(address)
    except OSError:
        end.close()
        raise
    return end


def _connect_to(address: str, token: bytes, *, timeout_s: float) -> socket.socket:
    host, port = parse_address(address)
    try:
        return RunIdentity(token).connect(host, port, timeout_s=timeout_s)
    except WorldError as error:
        raise ConfigError(str(error)) from error
