"""A real supervised run whose workers are forked, not started, so that they need not import torch."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swell.errors import ConfigError
from swell.supervisor.channel import Channel
from swell.supervisor.control import ask
from swell.supervisor.sizes import parse_sizes
from swell.supervisor.supervisor import RunOptions, supervise
from swell.supervisor.worker_process import WorkerProcess, WorkerSettings, worker_environment
from tests.workers import _context


class _Child:
    """As much of ``subprocess.Popen`` as a worker process needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class ForkedWorker(WorkerProcess):
    """A worker whose command is the name of a function, as ``module:function``, and its arguments as JSON."""

    def __init__(self, settings: WorkerSettings, *, member: int, slot: int, log: Path) -> None:
        near, far = socket.socketpair()
        near.setblocking(False)
        environ = worker_environment(os.environ, settings, member=member, slot=slot, channel=far.fileno())
        self.member, self.slot, self.log, self.log_start = member, slot, log, 0
        log.touch()
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.close(write_end)
            _work(settings.command, far.fileno(), environ, log)
        os.close(write_end)
        os.read(read_end, 1)  # until it has its own session and can be killed by it, like a started worker
        os.close(read_end)
        far.close()
        self._process = _Child(pid)  # type: ignore[assignment]
        self.channel = Channel(near)
        self.exit_fd = os.pidfd_open(pid)


def _work(command: Sequence[str], channel: int, environ: Mapping[str, str], log: Path) -> None:
    """Never returns. First closes the supervisor's sockets and lock, as ``exec`` would."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_DFL)
        output = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for entry in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                opened = os.readlink(f"/proc/self/fd/{entry}")
                if int(entry) != channel and (opened.startswith("socket:") or opened.endswith("/lock")):
                    os.close(int(entry))
        os.set_inheritable(channel, True)
        os.environ.clear()
        os.environ.update(environ)
        module, name = command[0].split(":")
        getattr(importlib.import_module(module), name)(*json.loads(command[1]))
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _supervise(run_dir: str, command: tuple[str, str], settings: dict[str, Any], environ: dict[str, str]) -> None:
    os.setsid()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    os.environ.update(environ)
    sizes = parse_sizes(settings.pop("workers"))
    options = RunOptions(
        command=command, run_dir=Path(run_dir), sizes=sizes, show="none", worker=ForkedWorker, **settings
    )
    with (Path(run_dir).parent / "terminal").open("a") as terminal:
        code = supervise(options, write=lambda line: print(line, file=terminal, flush=True))
    os._exit(code)


class ForkedRun:
    """One run in its own folder; none of its processes outlives the ``with`` block."""

    def __init__(
        self, folder: Path, function: str, *args: Any, environ: Mapping[str, str] | None = None, **settings: Any
    ) -> None:
        self.folder, self.run_dir = folder, folder / "run"
        command = (function, json.dumps(args))
        self.process = _context().Process(
            target=_supervise, args=(str(self.run_dir), command, settings, dict(environ or {}))
        )
        self.process.start()

    def __enter__(self) -> ForkedRun:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ConfigError):
            for worker in ask(self.run_dir, "status")["workers"]:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker["pid"], signal.SIGKILL)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()

    def terminal(self) -> str:
        """The output of the supervisor, then that of the newest workers."""
        texts = [(self.folder / "terminal").read_text()]
        logs = sorted((self.run_dir / "logs").glob("worker-*.log"), key=lambda log: log.stat().st_mtime)
        texts += [f"--- {log.name}\n{log.read_text()[-2000:]}" for log in logs[-6:]]
        return "\n".join(texts)[-12000:]

    def end(self, *, timeout_s: float = 60.0) -> int:
        """Wait for the run's end; its exit status."""
        deadline = time.monotonic() + timeout_s
        while self.process.is_alive() and time.monotonic() < deadline:
            self.process.join(timeout=0.5)
        assert not self.process.is_alive(), f"the run did not end:\n{self.terminal()}"
        assert self.process.exitcode is not None
        return self.process.exitcode
