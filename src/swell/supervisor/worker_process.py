"""One worker process: in its own session, with a channel to the supervisor and a log file."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from swell.core.regular_files import open_regular
from swell.supervisor.channel import Channel
from swell.supervisor.process_identity import own_identity

_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK")
_LAUNCHERS += ("ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
_PR_SET_PDEATHSIG = 1  # of Linux


class Process(Protocol):
    """As much of ``subprocess.Popen`` as a worker needs."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """The exit status; None while it runs."""

    def send_signal(self, sig: int, /) -> None:
        """Send a signal, unless it has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What all workers of a machine have in common."""

    command: tuple[str, ...]
    run_dir: Path
    threads: int
    beat_s: float
    variables: Mapping[str, str] = field(default_factory=dict)  # added to their environment
    interface: str = LOOPBACK  # the network interface over which they exchange
    address: str = "127.0.0.1"  # an address of that interface
    supervisor: str = field(default_factory=own_identity)  # the identity of the supervisor, on whichever machine
    bound: bool = False  # whether they end with the process that starts them, at once


class WorkerProcess:
    """A running worker. Its output goes directly to its log, so it never waits for the supervisor to read."""

    unlogged = ""  # why its output is lost, where it has no log

    def __init__(self, settings: WorkerSettings, *, member: int, slot: int, log: Path) -> None:
        near, far = socket.socketpair()
        near.setblocking(False)
        self.channel = Channel(near)
        environ = worker_environment(os.environ, settings, member=member, slot=slot, channel=far.fileno())
        self.member = member
        self.slot = slot
        self.log = log
        self.log_start = log.stat().st_size if log.exists() else 0  # where its output begins
        try:
            with far, self._output() as output:
                self._process = self._launch(settings, environ, channel=far.fileno(), output=output)
        except BaseException as error:
            self.channel.close()
            if isinstance(error, subprocess.SubprocessError):
                raise OSError(str(error)) from error
            raise
        self.exit_fd: int | None = None  # without one, its exit is asked for from time to time
        with contextlib.suppress(OSError, AttributeError):
            self.exit_fd = os.pidfd_open(self.pid)

    def _launch(
        self, settings: WorkerSettings, environ: Mapping[str, str], *, channel: int, output: BinaryIO
    ) -> Process:
        """Start the process in a session of its own, with these descriptors and no others."""
        return subprocess.Popen(
            settings.command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[channel],
            start_new_session=True,
            preexec_fn=end_with_parent(os.getpid()) if settings.bound else None,
        )

    def _output(self) -> BinaryIO:
        """The log, or nowhere if the disk takes none: a worker must be able to print."""
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            _try_to_write(self.log.with_suffix(".probe"))
            return open(open_regular(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")
        except OSError as error:
            self.unlogged = error.strerror or str(error)
            return open(os.devnull, "ab")

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """The exit status once the process is gone, below 0 for a signal; None while it runs.

        The processes that a failed worker leaves in its session (data loading) are killed first, while its process id
        is still taken and cannot mean another process.
        """
        if self._process.returncode is None and hasattr(os, "waitid"):
            with contextlib.suppress(ChildProcessError):
                result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if result is not None and result.si_status != 0:
                    self.kill()
        return self._process.poll()

    def send_signal(self, number: int) -> None:
        """Send a signal to the worker, not to its children."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the worker and every process that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the descriptors of a process that is gone."""
        self.channel.close()
        if self.exit_fd is not None:
            os.close(self.exit_fd)
            self.exit_fd = None


def _try_to_write(path: Path) -> None:
    """Raise ``OSError`` if the disk takes no more."""
    try:
        with open(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb", buffering=0) as file:
            left = memoryview(bytes(2**14))
            while left:
                left = left[file.write(left) :]
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def end_with_parent(parent: int, number: int = signal.SIGKILL) -> Callable[[], None] | None:
    """A function for a new process: the kernel kills it when its parent dies; None where the system has no such thing.

    An orphan would hold its device while others take its place. ``number`` is the signal that it gets.
    """
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)

    def bind() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:  # it died before this was set
            os.kill(os.getpid(), number)

    return bind


def worker_environment(
    environ: Mapping[str, str], settings: WorkerSettings, *, member: int, slot: int, channel: int
) -> dict[str, str]:
    """The environment of a worker: the supervisor's, without another launcher's variables, with ours.

    Workers of one machine use the loopback interface, so nobody outside can reach them. NCCL must not end the process
    when a peer is lost, because the process goes on. The user's own settings stay, but for the run's token, which no
    worker needs.
    """
    environ = {**environ, **settings.variables}
    unwanted = (*_LAUNCHERS, "SWELL_TOKEN", "SWELL_TOKEN_FILE")
    kept = {name: value for name, value in environ.items() if name not in unwanted and "TORCHELASTIC" not in name}
    defaults = {
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(settings.threads),
        "GLOO_SOCKET_IFNAME": settings.interface,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        "TORCH_NCCL_ENABLE_MONITORING": "0",
    }
    if settings.interface != LOOPBACK:
        defaults["NCCL_SOCKET_IFNAME"] = settings.interface
    ours = {
        "SWELL_MEMBER": str(member),
        "SWELL_SLOT": str(slot),
        "SWELL_CHANNEL": str(channel),
        "SWELL_RUN_DIR": str(settings.run_dir.resolve()),
        "SWELL_SUPERVISOR": settings.supervisor,
        "SWELL_KEEPER": own_identity(),
        "SWELL_ADDRESS": settings.address,
        "SWELL_BEAT_S": str(settings.beat_s),
    }
    return {**defaults, **kept, **ours}
