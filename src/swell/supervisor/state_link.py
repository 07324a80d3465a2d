"""One state of a run on its way from a machine to another, over a connection of its own between holders of the token.

The sender gives the manifest, then the bytes of the files in the manifest's order. The receiver answers when the state
is on its disk, or why it is not.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from swell.core.regular_files import open_regular
from swell.errors import SwellError, WorldError
from swell.supervisor.saved_state import SavedState, StateFolder

_LENGTH = struct.Struct(">Q")
_LONGEST = 1 << 28  # bytes of a manifest
_CHUNK = 1 << 20
_SILENT_S = 60.0  # without a byte, after which the other end counts as gone; syncing a disk may take long


def send_state(end: socket.socket, folder: StateFolder, state: SavedState) -> None:
    """Send a state; returns when the other end has it on its disk, ``WorldError`` if it has not."""
    end.settimeout(_SILENT_S)
    try:
        _write_block(end, json.dumps(state.to_message()).encode())
        _write_block(end, folder.manifest(state))
        for path, length in folder.files(state):
            with open(open_regular(path, 0), "rb", buffering=0) as file:
                left = length
                while left:
                    chunk = file.read(min(_CHUNK, left))
                    if not chunk:
                        raise WorldError(f"{path} is shorter than its manifest says; it is not sent.")
                    end.sendall(chunk)
                    left -= len(chunk)
        answer = json.loads(_read_block(end))
    except (OSError, ValueError) as error:
        raise WorldError(f"sending state {state.name} failed ({error})") from error
    if answer:
        raise WorldError(f"the other end refused state {state.name}: {answer}")


def receive_state(end: socket.socket, folder: StateFolder) -> SavedState:
    """Take a state that the other end sends, verified and on the disk; ``WorldError`` if it did not come whole."""
    end.settimeout(_SILENT_S)
    try:
        state = SavedState.from_message(json.loads(_read_block(end)))
        manifest = _read_block(end)
        folder.receive(state, manifest, lambda path, length: _bytes_of(end, length))
    except SwellError as error:
        _answer(end, str(error))
        raise
    except (ValueError, TypeError) as error:
        _answer(end, str(error))
        raise WorldError(f"a state that was on its way did not arrive ({error})") from error
    _answer(end, "")
    return state


class _Bytes:
    """The next bytes of a connection, as a file of this length."""

    def __init__(self, end: socket.socket, length: int) -> None:
        self._end, self._left = end, length

    def read(self, size: int = _CHUNK, /) -> bytes:
        if not self._left:
            return b""
        try:
            chunk = self._end.recv(min(size, self._left))
        except OSError as error:  # not an error of the disk
            raise WorldError(f"the connection was lost ({error})") from error
        if not chunk:
            raise WorldError("the other end hung up")
        self._left -= len(chunk)
        return chunk


@contextmanager
def _bytes_of(end: socket.socket, length: int) -> Iterator[_Bytes]:
    yield _Bytes(end, length)


def _answer(end: socket.socket, text: str) -> None:
    try:
        _write_block(end, json.dumps(text).encode())
    except OSError as error:
        if not text:
            raise WorldError(f"the answer to a state did not reach its sender ({error})") from error


def _write_block(end: socket.socket, content: Any) -> None:
    end.sendall(_LENGTH.pack(len(content)))
    end.sendall(content)


def _read_block(end: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_read_exactly(end, _LENGTH.size))
    if length > _LONGEST:
        raise ValueError(f"a block of {length} bytes; expected {_LONGEST} at most")
    return _read_exactly(end, length)


def _read_exactly(end: socket.socket, length: int) -> bytes:
    source, pieces = _Bytes(end, length), []
    while piece := source.read():
        pieces.append(piece)
    return b"".join(pieces)
