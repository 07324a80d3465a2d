"""Strikes of ``swell chaos`` that reach a worker by a signal: it gets stuck, loses its clock or fails."""

from __future__ import annotations

import signal
import threading
import time

from swell.runtime.environment import Environment
from swell.supervisor.strike_signals import STRIKE_SIGNALS

_pending: list[str] = []  # faults that a signal asked for and that did not happen yet


def take_strikes(environment: Environment) -> None:
    """Let ``swell chaos`` strike this worker by signals; nothing where it was not asked for."""
    if environment.swell_strikes and threading.current_thread() is threading.main_thread():
        acts = {"stuck": _get_stuck, "spin": _spin, "clock": _jump, "exception": _fail, "oom": _run_out}
        for kind, name in STRIKE_SIGNALS.items():
            signal.signal(getattr(signal, name), acts[kind])


def take_pending() -> str | None:
    """The kind of fault that a strike asked for, once; None where there is none."""
    return _pending.pop() if _pending else None


def _get_stuck(*_: object) -> None:
    while True:
        time.sleep(3600)


def _spin(*_: object) -> None:
    while True:
        pass


def _fail(*_: object) -> None:
    """Not here, where no script raises anything, but at the next point of ``faults.POINTS``."""
    _pending[:] = ["exception"]


def _run_out(*_: object) -> None:
    _pending[:] = ["oom"]


_CLOCK = time.time


def _jump(*_: object) -> None:
    """The wall clock of this process goes a day ahead, or back where it was."""
    ahead = time.time() - _CLOCK() > 3600
    time.time = _CLOCK if ahead else lambda: _CLOCK() + 86400  # type: ignore[assignment]
