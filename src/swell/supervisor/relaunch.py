"""A supervisor in a process of its own, started again whenever it is killed on purpose."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_CODE = "import json, sys; from swell.cli.run import start_run; sys.exit(start_run(json.loads(sys.argv[1])))"
_LEAVE_S = 120.0  # how long workers may take to save and end when their supervisor is gone


def run_and_relaunch(
    options: Mapping[str, Any], variables: Mapping[str, str], *, struck: Callable[[int], Iterable[int] | None]
) -> tuple[int, int]:
    """Run to the end; the exit status, and the number of workers that outlived a supervisor for too long.

    ``struck`` gives the workers of a supervisor, by its process id, that was killed on purpose; None if it was not.
    """
    left_behind = 0
    while True:
        child = subprocess.Popen([sys.executable, "-c", _CODE, json.dumps(options)], env={**os.environ, **variables})
        with _signals_passed_to(child):
            status = child.wait()
        workers = struck(child.pid)
        if status >= 0 or workers is None:
            return (status if status >= 0 else 128 - status), left_behind
        left_behind += _wait_for_end(workers)


@contextmanager
def _signals_passed_to(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """A request to stop reaches the supervisor; the terminal sends Ctrl-C to it by itself."""
    numbers = {signal.SIGTERM: lambda *_: child.send_signal(signal.SIGTERM), signal.SIGINT: lambda *_: None}
    before = {number: signal.signal(number, handler) for number, handler in numbers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_for_end(workers: Iterable[int]) -> int:
    """Wait until these processes are gone; how many are not."""
    left, deadline = set(workers), time.monotonic() + _LEAVE_S
    while left and time.monotonic() < deadline:
        left = {pid for pid in left if _runs(pid)}
        time.sleep(0.05)
    return len(left)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
