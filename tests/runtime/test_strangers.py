"""Other users of the machine cannot use up a worker's descriptors through gloo's ports."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import stat
import subprocess
import sys
from typing import Any

import pytest

from swell.runtime.strangers import _listeners, closed_to_strangers
from tests.workers import run_workers

ATTEMPTS = 40


def connected(port: int, attempts: int) -> int:
    """How many connections to the port a child gets within half a second; it is another user if that can be."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            if os.getuid() == 0:
                os.setuid(65534)
            strangers = [socket.socket() for _ in range(attempts)]
            for stranger in strangers:
                stranger.setblocking(False)
                stranger.connect_ex(("127.0.0.1", port))
            _, writable, _ = select.select([], strangers, [], 0.5)
            while (
                len(writable) < attempts and select.select([], [s for s in strangers if s not in writable], [], 0.2)[1]
            ):
                _, writable, _ = select.select([], strangers, [], 0)
            os.write(
                write_end, bytes([len([s for s in writable if not s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)])])
            )
        os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as answer:
        count = answer.read()
    os.waitpid(pid, 0)
    return count[0]


def open_sockets() -> int:
    """How many sockets this process has open; threads of other tests may open files meanwhile."""
    count = 0
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += stat.S_ISSOCK(os.fstat(int(entry)).st_mode)
    return count


def besieged(collective: Any) -> tuple[list[int], int, list[float]]:
    ports = []
    for descriptor in _listeners():
        with socket.socket(fileno=os.dup(descriptor)) as listener:
            ports.append(listener.getsockname()[1])
    before = len(os.listdir("/proc/self/fd"))
    collective.barrier()
    got = [connected(port, ATTEMPTS) for port in ports]
    collective.barrier()
    more = len(os.listdir("/proc/self/fd")) - before
    return got, more, [row[0] for row in collective.gather_numbers([float(collective.rank)])]


@pytest.mark.distributed
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's packet filter for sockets is Linux's")
def test_strangers_get_no_connection_to_a_worker_and_the_world_goes_on() -> None:
    for got, more, numbers in run_workers(2, besieged):
        assert len(got) == 2 and sum(got) == 0, "gloo's ports of both groups"
        assert more == 0 and numbers == [0.0, 1.0]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's packet filter for sockets is Linux's")
def test_ports_from_before_stay_open_and_connections_stay_whole() -> None:
    sockets = open_sockets()
    with socket.create_server(("127.0.0.1", 0)) as mine:
        with closed_to_strangers():
            other = socket.create_server(("127.0.0.1", 0))
            friend = socket.create_connection(other.getsockname())
            accepted, _ = other.accept()
        with other, friend, accepted:
            friend.sendall(b"hello")
            assert accepted.recv(5) == b"hello"
            assert connected(mine.getsockname()[1], 3) == 3
            assert connected(other.getsockname()[1], 3) == 0
    assert open_sockets() == sockets


def test_the_limit_of_descriptors_is_raised_as_far_as_it_may() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 512));"
        "from swell.supervisor.descriptors import raise_descriptor_limit; print(raise_descriptor_limit())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == min(512, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
