"""Addresses of a network: how they are written, and which interface of this machine has one."""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import socket
import struct
import sys
from collections.abc import Iterator

from swell.errors import ConfigError

DEFAULT_PORT = 29777
_REPEATED_S = 0.2  # Linux counts from the first repetition of a message, which comes this long after it at the soonest
_SHORTEST_S = 0.05


def parse_address(text: str, *, option: str = "the address") -> tuple[str, int]:
    """Host and port of ``host``, ``host:port``, ``[address]:port`` or an IPv6 address alone.

    >>> parse_address("10.0.0.1:4000"), parse_address("[fd00::1]:4000"), parse_address("fd00::1")
    (('10.0.0.1', 4000), ('fd00::1', 4000), ('fd00::1', 29777))
    """
    host, port = text, str(DEFAULT_PORT)
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":") or port
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ConfigError(
            f"{option} is {text!r}; expected a host and a port, as in 10.0.0.1:{DEFAULT_PORT}, "
            f"[fd00::1]:{DEFAULT_PORT} or node1."
        )
    return host, int(port)


def is_address(text: str) -> bool:
    """Whether a text names a host and a port, and not a folder.

    >>> is_address("node1:29777"), is_address("runs/digits"), is_address("[::1]:29777")
    (True, False, True)
    """
    if "/" in text or ":" not in text:
        return False
    try:
        parse_address(text)
    except ConfigError:
        return False
    return True


def format_address(host: str, port: int) -> str:
    """The address as ``parse_address`` reads it.

    >>> format_address("fd00::1", 4000)
    '[fd00::1]:4000'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def own_address(host: str) -> str:
    """The numeric address of this machine that ``host`` names, by which other machines reach it.

    A name must not stand for the loopback interface (Debian's ``/etc/hosts`` does that), because others would then find
    themselves. An address is taken as it is given.
    """
    try:
        number = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return _look_up(host)
    if number.is_unspecified:
        raise ConfigError(
            f"--listen is {host!r}, which means every interface; expected the one address by which the other machines "
            f"reach this one. Give that."
        )
    return host


def _look_up(host: str) -> str:
    try:
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except OSError as error:
        raise ConfigError(
            f"--listen is {host!r}, a name that cannot be looked up ({error}); expected an address of this machine. "
            f"Give its number."
        ) from error
    outside = [address for address in found if not ipaddress.ip_address(address.partition("%")[0]).is_loopback]
    if not outside and host != "localhost":
        raise ConfigError(
            f"--listen is {host!r}, which is {found[0]} here, an address that other machines cannot reach; expected "
            f"one that they can. Give the number of the address."
        )
    return (outside or found)[0]


def interface_of(address: str) -> str | None:
    """The name of the interface that has this address; None if none has it, or the system does not say.

    >>> interface_of("127.0.0.1") in ("lo", "lo0")
    True
    """
    wanted = ipaddress.ip_address(address.partition("%")[0])
    wanted = getattr(wanted, "ipv4_mapped", None) or wanted
    loopback = None
    with contextlib.suppress(OSError, AttributeError):
        for name, own in _addresses():
            if own == wanted:
                return name
            if own.is_loopback:
                loopback = name
    return loopback if wanted.is_loopback else None  # the whole of 127.0.0.0/8 belongs to it


def sign_interval(*, beat_s: float, silence_s: float) -> float:
    """How often to send something over a connection, so that ``silence_s`` begins soon after the network was lost.

    The kernel only misses the answer to what was sent. A process that is slow does not matter: its kernel answers.

    >>> sign_interval(beat_s=1.0, silence_s=5.0), sign_interval(beat_s=1.0, silence_s=0.4)
    (1.0, 0.1)
    """
    return min(beat_s, silence_s / 4)


def reach_quickly(connection: socket.socket, *, silence_s: float) -> None:
    """Let the kernel end a connection whose other machine has not answered for this long.

    The other kernel answers even where its processes are slow or stopped, so this finds machines and networks that are
    gone, and nothing else.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probe_s = max(1, int(silence_s / 4))
    options = {"TCP_KEEPIDLE": probe_s, "TCP_KEEPINTVL": probe_s, "TCP_KEEPCNT": 3}
    options["TCP_USER_TIMEOUT"] = int(max(_SHORTEST_S, silence_s - _REPEATED_S) * 1000)
    for name, value in options.items():
        if hasattr(socket, name):
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class _Entry(ctypes.Structure):
    """``struct ifaddrs`` of the C library, as far as it is read."""


_Entry._fields_ = [
    ("next", ctypes.POINTER(_Entry)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]


def _addresses() -> Iterator[tuple[str, ipaddress.IPv4Address | ipaddress.IPv6Address]]:
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_Entry)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        raise OSError(ctypes.get_errno(), "getifaddrs")
    try:
        entry = first
        while entry:
            if entry.contents.address:
                raw = ctypes.string_at(entry.contents.address, 2)
                family = raw[1] if sys.platform == "darwin" else struct.unpack("H", raw)[0]
                if family in (socket.AF_INET, socket.AF_INET6):
                    start, size = (4, 4) if family == socket.AF_INET else (8, 16)
                    number = ctypes.string_at(entry.contents.address + start, size)
                    yield entry.contents.name.decode(), ipaddress.ip_address(number)
            entry = entry.contents.next
    finally:
        libc.freeifaddrs(first)
