"""Processes that are forked instead of started: what this one has imported is there at once.

For ``swell chaos --preload``, which strikes so often that most of the time would go into imports.
"""

from __future__ import annotations

import atexit
import gc
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NoReturn

from swell.supervisor.worker_process import WorkerProcess, WorkerSettings

_MOST_DESCRIPTORS = 2**20


class ForkedProcess:
    """A child of this process, by its number; as much of ``subprocess.Popen`` as is needed."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status, below 0 for a signal; None while it runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        """The exit status, once it has ended."""
        status = self._wait(0)
        assert status is not None
        return status

    def send_signal(self, sig: int, /) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class ForkedWorker(WorkerProcess):
    """A worker whose command, ``python SCRIPT ...`` or ``python -m MODULE ...``, runs in a fork of this process."""

    def _launch(
        self, settings: WorkerSettings, environ: Mapping[str, str], *, channel: int, output: BinaryIO
    ) -> ForkedProcess:
        line = settings.command[1:]
        return fork(lambda: _run_script(line), environ, keep=channel, output=output.fileno(), errors=output.fileno())


def fork(
    run: Callable[[], int],
    environ: Mapping[str, str],
    *,
    output: int,
    errors: int | None = None,
    keep: int | None = None,
) -> ForkedProcess:
    """Call ``run`` in a fork of this process; what it returns is the exit status.

    The fork has ``output`` as its standard output and none of the other descriptors but ``keep``. With ``errors`` as
    its standard error it has a session of its own, from the moment that this function returns.
    """
    ready, begun = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_new(run, environ, streams=(output, errors), keep=keep)
    os.close(begun)
    os.read(ready, 1)  # nobody writes: it returns when the fork has closed the other end
    os.close(ready)
    return ForkedProcess(pid)


def _be_new(
    run: Callable[[], int], environ: Mapping[str, str], *, streams: tuple[int, int | None], keep: int | None
) -> NoReturn:
    """Be as a process that was just started; never returns, so that nothing of the parent's is closed twice."""
    status = 1
    try:
        gc.freeze()  # what the parent no longer needs must not be freed here, where its descriptors mean others
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        output, errors = streams
        os.dup2(output, 1)
        if errors is not None:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(errors, 2)
        if keep is not None:
            os.set_inheritable(keep, True)
            os.closerange(3, keep)
        os.closerange(3 if keep is None else keep + 1, _MOST_DESCRIPTORS)
        os.environ.clear()
        os.environ.update(environ)
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, ValueError):
                stream.reconfigure(write_through=True)  # type: ignore[union-attr]
        status = run()
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
        atexit._run_exitfuncs()
    finally:
        os._exit(status)


def _run_script(arguments: Sequence[str]) -> int:
    """Run a script or a module; the status that the interpreter would end with."""
    try:
        if arguments[0] == "-m":
            sys.argv = list(arguments[1:])
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0] = list(arguments), str(Path(arguments[0]).resolve().parent)
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # pyright: ignore[reportArgumentType]
        return 1
    return 0
