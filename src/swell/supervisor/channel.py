"""Messages between two processes of a run: JSON lines over a connection that only these two hold."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Mapping
from typing import Any

from swell.errors import WorldError

_MOST_UNSENT = 2**22  # bytes that wait for an end that does not read


class Channel:
    """One end of a connected stream socket. ``send`` may be called from several threads, ``receive`` from one.

    On a socket that does not block, what the other end has not taken yet waits here: ``flush`` sends it when there is
    room. A TLS socket must not block, and belongs to one thread.
    """

    def __init__(self, end: socket.socket, *, most_unsent: int = _MOST_UNSENT) -> None:
        self._socket = end
        self._lock = threading.Lock()
        self._unread = b""
        self._unsent = bytearray()
        self._most = most_unsent

    @property
    def unsent(self) -> int:
        """Bytes that wait to be sent."""
        return len(self._unsent)

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any]) -> bool:
        """Send one message; False when the other end is gone, or when too much waits because it does not read."""
        return self.send_line(encode(message))

    def send_line(self, line: bytes) -> bool:
        """Send a message that is encoded already."""
        with self._lock:
            if self._socket.gettimeout() is None:
                try:
                    self._socket.sendall(line)
                except OSError:
                    return False
                return True
            if self._unsent and len(self._unsent) + len(line) > self._most:
                return False
            self._unsent += line
            return self._flush()

    def flush(self) -> bool:
        """Send what waits, as far as there is room; False when the other end is gone."""
        with self._lock:
            return self._flush()

    def receive(self) -> list[dict[str, Any]] | None:
        """The messages that have arrived, possibly none; None when the other end is gone. Does not wait."""
        while True:
            try:
                piece = self._read()
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return self._take_lines()
            except OSError:
                piece = b""
            if not piece:
                return self._take_lines() or None
            self._unread += piece

    def detach(self) -> socket.socket:
        """The socket itself, which blocks from now on, for what is no message; the channel is of no use any more."""
        self._socket.setblocking(True)
        return self._socket

    def close(self) -> None:
        """Close this end; the other one sees that."""
        self._socket.close()

    def _read(self) -> bytes:
        if isinstance(self._socket, ssl.SSLSocket):
            return self._socket.recv(65536)
        return self._socket.recv(65536, socket.MSG_DONTWAIT)

    def _flush(self) -> bool:
        while self._unsent:
            try:
                del self._unsent[: self._socket.send(self._unsent)]
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return True
            except OSError:
                self._unsent.clear()
                return False
        return True

    def _take_lines(self) -> list[dict[str, Any]]:
        *lines, self._unread = self._unread.split(b"\n")
        return [_parse(line) for line in lines]


def encode(message: Mapping[str, Any]) -> bytes:
    """A message as it travels."""
    return json.dumps(message).encode() + b"\n"


def _parse(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict) or not isinstance(message.get("say"), str):
        raise WorldError(
            f"a message on swell's channel is {line[:80]!r}; expected one of the supervisor or a worker. Only they "
            f"may write to the descriptor in SWELL_CHANNEL: close it in processes you start yourself."
        )
    return message
