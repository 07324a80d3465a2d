"""The worker processes of this machine: started, watched and ended on the word of the supervisor, here or elsewhere."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from swell.errors import WorldError
from swell.supervisor.channel import encode
from swell.supervisor.logs import LogFollower
from swell.supervisor.run_dir import RunDir
from swell.supervisor.script_error import script_error
from swell.supervisor.wire import Wire
from swell.supervisor.worker_process import WorkerProcess, WorkerSettings

_POLL_S = 0.05

Report = Callable[[dict[str, Any]], object]


class LocalWorkers:
    """Carries out orders and reports what happens, both as messages, so that they may travel to another machine.

    Orders: ``start`` (member, slot), ``send`` (message, members or None for all), ``each`` (messages: pairs of a member
    and its own), ``kill`` and ``signal`` (member, signal).
    Reports: ``started`` (member, pid, log, unlogged), ``not started`` (member, why), ``heard`` (member, message),
    ``lines`` (member, lines) and ``exited`` (member, code, error). The last one of a worker is its exit.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        selector: selectors.BaseSelector,
        report: Report,
        *,
        worker: type[WorkerProcess] = WorkerProcess,
    ) -> None:
        self._settings, self._selector, self._report, self._worker = settings, selector, report, worker
        self._logs = RunDir(settings.run_dir).logs
        self._processes: dict[int, WorkerProcess] = {}
        self._wires: dict[int, Wire] = {}
        self._followers: dict[int, LogFollower] = {}
        self._lines: dict[int, list[str]] = {}

    def __len__(self) -> int:
        return len(self._processes)

    def order(self, order: Mapping[str, Any]) -> None:
        """Carry out one order; one for a worker that is gone does nothing."""
        word = order["say"]
        if word == "start":
            self._start(order["member"], order["slot"])
        elif word == "send":
            members = self._wires if order["members"] is None else order["members"]
            line = encode(order["message"])
            for member in members:
                if member in self._wires:
                    self._wires[member].send_line(line)  # one that does not read is found by its silence
        elif word == "each":
            for member, message in order["messages"]:
                if member in self._wires:
                    self._wires[member].send(message)
        elif word == "kill" and order["member"] in self._processes:
            self._processes[order["member"]].kill()
        elif word == "signal" and order["member"] in self._processes:
            self._processes[order["member"]].send_signal(getattr(signal, order["signal"]))

    def look(self) -> None:
        """Report what no descriptor tells: new lines of logs, and exits where the system has no descriptor of them."""
        for process in [each for each in self._processes.values() if each.exit_fd is None]:
            self._reap(process)
        for member in self._processes:
            self._followers[member].look(member, "")
            self._report_lines(member)

    def let_go(self, *, grace_s: float, only: Callable[[int], bool] = lambda member: True) -> None:
        """Nobody gives orders any more: workers see their connection end, save and stop; the rest is killed.

        Those for which ``only`` is false are killed at once, because they have nothing to save.
        """
        for member, process in self._processes.items():
            self._wires[member].close()
            if not only(member):
                process.kill()
        left, deadline = dict(self._processes), time.monotonic() + grace_s
        while left and time.monotonic() < deadline:
            left = {member: process for member, process in left.items() if process.poll() is None}
            time.sleep(_POLL_S)
        for process in left.values():
            process.kill()
        for process in list(self._processes.values()):
            self._forget(process)

    def _start(self, member: int, slot: int) -> None:
        log = self._logs / f"worker-{member}.log"
        try:
            process = self._worker(self._settings, member=member, slot=slot, log=log)
        except OSError as error:
            self._report({"say": "not started", "member": member, "why": str(error)})
            return
        self._processes[member] = process
        self._lines[member] = []
        self._followers[member] = follower = LogFollower(self._lines[member].append)
        follower.add(member, log)
        self._wires[member] = Wire(process.channel, self._selector, lambda: self._hear(process))
        if process.exit_fd is not None:
            self._selector.register(process.exit_fd, selectors.EVENT_READ, lambda: self._reap(process))
        facts = {"pid": process.pid, "log": str(log), "unlogged": process.unlogged}
        self._report({"say": "started", "member": member, **facts})

    def _hear(self, process: WorkerProcess) -> None:
        if process.member not in self._wires:
            return
        try:
            messages = process.channel.receive()
        except WorldError as error:
            self._report({"say": "heard", "member": process.member, "message": {"say": "nonsense", "text": str(error)}})
            messages = None
        if messages is None:  # it has closed the channel; its exit is noticed separately
            self._wires[process.member].forget()
            return
        for message in messages:
            self._report({"say": "heard", "member": process.member, "message": message})

    def _reap(self, process: WorkerProcess) -> None:
        code = process.poll()
        if code is None or process.member not in self._processes:
            return
        self._hear(process)  # its last messages came before its exit
        self._followers[process.member].remove(process.member, "")
        self._report_lines(process.member)
        error = script_error(process.log, process.log_start) if code > 0 else ""
        self._forget(process)
        self._report({"say": "exited", "member": process.member, "code": code, "error": error})

    def _report_lines(self, member: int) -> None:
        lines = self._lines[member]
        if lines:
            self._report({"say": "lines", "member": member, "lines": lines[:]})
            lines.clear()

    def _forget(self, process: WorkerProcess) -> None:
        self._wires.pop(process.member).close()
        if process.exit_fd is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(process.exit_fd)
        process.close()
        for table in (self._processes, self._followers, self._lines):
            table.pop(process.member, None)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
