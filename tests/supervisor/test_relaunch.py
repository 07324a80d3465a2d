"""A run under strikes is started again where a scheduler would do so, and only there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable

import pytest

from swell.supervisor.relaunch import Tap, run_and_relaunch


class Runs:
    """Supervisors that end in the given ways, one after the other: by a status, or by a signal below 0."""

    def __init__(self, *ends: int) -> None:
        self._ends, self.started = list(ends), 0

    def __call__(self, output: int) -> subprocess.Popen[bytes]:
        end, self.started = self._ends[self.started], self.started + 1
        code = f"raise SystemExit({end})" if end >= 0 else f"import os; os.kill(os.getpid(), {-end})"
        return subprocess.Popen([sys.executable, "-c", code], stdout=output)


def run(runs: Runs, *, may_stop: bool = False, killed: Iterable[int] | None = None) -> int:
    return run_and_relaunch(runs, struck=lambda pid: killed, may_stop=lambda: may_stop, tap=Tap())


@pytest.mark.parametrize(
    ("ends", "may_stop", "killed", "status", "started"),
    [
        ((0,), False, None, 0, 1),
        ((1, 0), False, None, 1, 1),  # it failed
        ((143, 143, 0), False, None, 0, 3),  # it saved and stopped by itself
        ((143, 0), True, None, 143, 1),  # it was asked to
        ((-9, 0), False, [], 0, 2),  # it was killed here
        ((-9, 0), False, None, 137, 1),  # it was killed by somebody else
    ],
)
def test_who_is_started_again(
    ends: tuple[int, ...], may_stop: bool, killed: list[int] | None, status: int, started: int
) -> None:
    runs = Runs(*ends)
    assert run(runs, may_stop=may_stop, killed=killed) == status
    assert runs.started == started


def test_a_signal_from_outside_ends_it_for_good() -> None:
    started = 0

    def start(output: int) -> subprocess.Popen[bytes]:
        nonlocal started
        started += 1
        code = "import signal, time; signal.signal(15, lambda *_: exit(143)); print('up', flush=True); time.sleep(60)"
        return subprocess.Popen([sys.executable, "-c", code], stdout=output)

    def stop() -> None:
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    assert run_and_relaunch(start, struck=lambda pid: None, may_stop=lambda: False, tap=Tap()) == 143
    assert started == 1
