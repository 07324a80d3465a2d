"""One worker process: in its own session, with a channel to the supervisor and a log file."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from swell.core.regular_files import open_regular
from swell.supervisor.channel import Channel
from swell.supervisor.process_identity import own_identity

_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK")
_LAUNCHERS += ("ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Process(Protocol):
    """As much of ``subprocess.Popen`` as a worker needs."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """The exit status; None while it runs."""

    def send_signal(self, sig: int, /) -> None:
        """Send a signal, unless it has ended."""


class WorkerProcess:
    """A running worker. Its output goes directly to its log, so it never waits for the supervisor to read."""

    unlogged = ""  # why its output is lost, where it has no log

    def __init__(
        self,
        command: Sequence[str],
        *,
        member: int,
        slot: int,
        run_dir: Path,
        log: Path,
        threads: int,
        beat_s: float,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        near, far = socket.socketpair()
        near.setblocking(False)
        self.channel = Channel(near)
        environ = worker_environment(
            {**os.environ, **(variables or {})},
            member=member,
            slot=slot,
            channel=far.fileno(),
            run_dir=run_dir,
            threads=threads,
            beat_s=beat_s,
        )
        self.member = member
        self.slot = slot
        self.log = log
        self.log_start = log.stat().st_size if log.exists() else 0  # where its output begins
        try:
            with far, self._output() as output:
                self._process = self._launch(command, environ, channel=far.fileno(), output=output)
        except BaseException:
            self.channel.close()
            raise
        self.exit_fd: int | None = None  # without one, its exit is asked for from time to time
        with contextlib.suppress(OSError, AttributeError):
            self.exit_fd = os.pidfd_open(self.pid)

    def _launch(self, command: Sequence[str], environ: Mapping[str, str], *, channel: int, output: BinaryIO) -> Process:
        """Start the process in a session of its own, with these descriptors and no others."""
        return subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[channel],
            start_new_session=True,
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


def worker_environment(
    environ: Mapping[str, str], *, member: int, slot: int, channel: int, run_dir: Path, threads: int, beat_s: float
) -> dict[str, str]:
    """The environment of a worker: the supervisor's, without another launcher's variables, with ours.

    Workers of one machine use the loopback interface, so nobody outside can reach them. NCCL must not end the process
    when a peer is lost, because the process goes on. The user's own settings stay.
    """
    kept = {name: value for name, value in environ.items() if name not in _LAUNCHERS and "TORCHELASTIC" not in name}
    defaults = {
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(threads),
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        "TORCH_NCCL_ENABLE_MONITORING": "0",
    }
    ours = {
        "SWELL_MEMBER": str(member),
        "SWELL_SLOT": str(slot),
        "SWELL_CHANNEL": str(channel),
        "SWELL_RUN_DIR": str(run_dir.resolve()),
        "SWELL_SUPERVISOR": own_identity(),
        "SWELL_BEAT_S": str(beat_s),
    }
    return {**defaults, **kept, **ours}
