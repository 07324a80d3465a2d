"""Messages between the supervisor and one worker: JSON lines over a socket pair that only these two hold."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from typing import Any

from swell.errors import WorldError


class Channel:
    """One end of a connected stream socket. ``send`` may be called from several threads, ``receive`` from one."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._lock = threading.Lock()
        self._unread = b""

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any]) -> bool:
        """Send one message; False when the other end is gone, or when its buffer is full because it does not read."""
        line = json.dumps(message).encode() + b"\n"
        with self._lock:
            try:
                self._socket.sendall(line)
            except OSError:
                return False
        return True

    def receive(self) -> list[dict[str, Any]] | None:
        """The messages that have arrived, possibly none; None when the other end is gone. Does not wait."""
        while True:
            try:
                piece = self._socket.recv(65536, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return self._take_lines()
            except OSError:
                piece = b""
            if not piece:
                return self._take_lines() or None
            self._unread += piece

    def close(self) -> None:
        """Close this end; the other one sees that."""
        self._socket.close()

    def _take_lines(self) -> list[dict[str, Any]]:
        *lines, self._unread = self._unread.split(b"\n")
        return [_parse(line) for line in lines]


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
