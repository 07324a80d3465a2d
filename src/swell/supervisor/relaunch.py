"""A supervisor in a process of its own, started again whenever it was killed, or had to stop, for strikes."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from swell.supervisor.notice import EXIT_RESUME
from swell.supervisor.process_identity import identity_of, is_running, is_stopped

_LEAVE_S = 120.0  # how long workers may take to save and end when their supervisor is gone
_PIPE_BYTES = 4096  # so that an output that nobody reads is full soon


class Process(Protocol):
    """As much of ``subprocess.Popen`` as a supervisor needs."""

    pid: int

    def wait(self) -> int:
        """The exit status, once it has ended."""
        ...

    def send_signal(self, sig: int, /) -> None:
        """Send a signal, unless it has ended."""


class Tap:
    """Passes on what a supervisor writes to its standard output; inside ``shut`` nobody reads it."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()

    @contextmanager
    def shut(self) -> Iterator[None]:
        """Inside the block nobody reads the output."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    @contextmanager
    def passing_on(self, output: int) -> Iterator[None]:
        """Read an output to its end, and write it to this process's own."""
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        thread = threading.Thread(target=self._pass_on, args=(output,), name="swell-tap", daemon=True)
        thread.start()
        try:
            yield
        finally:
            thread.join()
            os.close(output)

    def _pass_on(self, output: int) -> None:
        while piece := os.read(output, _PIPE_BYTES):
            sys.stdout.write(piece.decode(errors="replace"))
            sys.stdout.flush()
            self._open.wait()


def environment_with(variables: Mapping[str, str], *, ours: bool = True) -> dict[str, str]:
    """This process's environment and these variables; ``ours`` keeps the other variables of swell."""
    kept = {name: value for name, value in os.environ.items() if ours or not name.startswith("SWELL_")}
    return {**kept, **variables}


def run_and_relaunch(
    start: Callable[[int], Process],
    *,
    struck: Callable[[int], Iterable[int] | None],
    may_stop: Callable[[], bool],
    tap: Tap,
) -> int:
    """Run to the end; the exit status.

    ``start`` starts a supervisor whose standard output is the given descriptor. ``struck`` gives the workers of a
    supervisor, by its process id, that was killed on purpose; None if it was not. They save and end before the next
    one is started, except those that are stopped. A run that saved and stopped because too few workers were left is
    resumed too, as schedulers do, unless ``may_stop`` or a signal to this process asked for the stop.
    """
    asked = threading.Event()
    while True:
        output, descriptor = os.pipe()
        try:
            child = start(descriptor)
        finally:
            os.close(descriptor)
        with tap.passing_on(output), _signals_passed_to(child, asked):
            status = child.wait()
        workers = struck(child.pid)
        if status == EXIT_RESUME and not may_stop() and not asked.is_set():
            continue
        if status >= 0 or workers is None:
            return status if status >= 0 else 128 - status
        _wait_for_end(workers)


@contextmanager
def _signals_passed_to(child: Process, asked: threading.Event) -> Iterator[None]:
    """A request to stop is noted in ``asked`` and reaches the supervisor; the terminal sends it Ctrl-C by itself."""

    def pass_on(number: int, _: object) -> None:
        asked.set()
        if number == signal.SIGTERM:
            child.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_for_end(workers: Iterable[int]) -> None:
    """Wait until these processes are gone or stopped."""
    left, deadline = {pid: identity_of(pid) or "" for pid in workers}, time.monotonic() + _LEAVE_S
    while left and time.monotonic() < deadline:
        left = {pid: identity for pid, identity in left.items() if is_running(identity) and not is_stopped(pid)}
        time.sleep(0.05)
