"""Ports that gloo leaves open, closed to strangers once the members of a group have found one another."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_ATTACH_FILTER = 26  # SO_ATTACH_FILTER of Linux
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # one instruction of the kernel's packet filter: return 0 bytes


@contextmanager
def closed_to_strangers() -> Iterator[None]:
    """Close the ports that are opened in the block, at its end, to whoever is not connected yet; on Linux only.

    A gloo group connects every pair of members when it is made, and keeps its port open after that for nobody. Any user
    of the machine could connect to it, and each connection would take a descriptor of this process until none is
    left. The kernel drops such packets now: a stranger's attempt times out and costs nothing here. Closing the socket
    instead would let gloo's thread spin. torch's gloo has no transport that authenticates its peers (2.13).
    """
    before = set(_listeners())
    yield
    if "TORCH_GLOO_LAZY_INIT" in os.environ:
        return  # members connect when they first exchange something
    for descriptor in set(_listeners()) - before:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as listener:
            _drop_packets(listener)


def _listeners() -> Iterator[int]:
    """The descriptors of this process's listening TCP sockets."""
    if sys.platform != "linux":
        return
    for entry in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(entry)).st_mode):
                continue
        except OSError:
            continue  # the descriptor of the listing itself
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(entry))) as copy:
            internet = copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM
            if internet and copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                yield int(entry)


def _drop_packets(listener: socket.socket) -> None:
    code = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
    program = struct.pack("HL", 1, ctypes.addressof(code))  # struct sock_fprog: length, instructions
    listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
