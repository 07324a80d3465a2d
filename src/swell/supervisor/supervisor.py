"""The supervisor: keeps the workers of a run going on one machine and announces who belongs to the world."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from swell.core.regular_files import open_regular
from swell.errors import ConfigError, SwellError, WorldError
from swell.supervisor.actions import Action, Announce, Ask, End, Kill, Log, Release, Start
from swell.supervisor.channel import Channel
from swell.supervisor.control import ControlServer
from swell.supervisor.listening import Listening
from swell.supervisor.logs import LogFollower
from swell.supervisor.membership import Membership, OnFailure
from swell.supervisor.patience import Patience
from swell.supervisor.private_folder import PrivateFolder
from swell.supervisor.requests import carry_out
from swell.supervisor.run_dir import RunDir
from swell.supervisor.script_error import script_error
from swell.supervisor.sizes import WorldSizes
from swell.supervisor.stall import Activity
from swell.supervisor.terminal import Terminal
from swell.supervisor.troubles import Troubles, disk_trouble
from swell.supervisor.worker_process import WorkerProcess
from swell.supervisor.worker_trace import WorkerTrace

_TICK_S = 0.1
_LOOK_S = 2.0  # between two looks at the disk, the terminal and the control socket
_UNREAD_S = 30.0  # without a line that the terminal takes
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How to run and supervise a command."""

    command: tuple[str, ...]  # what every worker runs
    run_dir: Path
    sizes: WorldSizes
    start: int  # number of workers at the start
    max_restarts: int = 3
    on_failure: OnFailure = "restart"
    patience: Patience = field(default_factory=Patience)
    beat_s: float = 1.0
    trace: WorkerTrace | None = None
    trace_removals: Literal["notice", "kill"] = "notice"
    show: Literal["all", "first", "none"] = "all"  # whose output goes to the terminal
    variables: Mapping[str, str] = field(default_factory=dict)  # added to the workers' environment
    worker: type[WorkerProcess] = WorkerProcess  # how a worker is started


class Supervisor:
    """Runs in one thread: waits for messages and exits of workers, commands of the owner and signals, in any order."""

    def __init__(self, options: RunOptions, *, write: Callable[[str], None], prepare: Callable[[], None]) -> None:
        self.options = options
        self._prepare = prepare
        self.run_dir = RunDir(options.run_dir)
        self._terminal = Terminal(write)
        self._processes: dict[int, WorkerProcess] = {}
        self._selector = selectors.DefaultSelector()
        self._logs = LogFollower(self._terminal.show)
        self._members = Membership(
            options.sizes,
            target=options.start,
            max_restarts=options.max_restarts,
            on_failure=options.on_failure,
            patience=options.patience,
        )
        self._private = PrivateFolder(self.run_dir.control)
        self._troubles = Troubles(self._log)
        self._began_at = time.monotonic()
        self._looked_at = -math.inf
        self._trained_since: float | None = None  # when the first generation was formed
        self._trace_target = options.start
        self._interrupts = 0
        self._code: int | None = None

    def run(self) -> int:
        """Supervise the run until it has finished, was stopped or failed; returns the exit status.

        0 when training finished, 143 when it was stopped and can be resumed, 130 when a second Ctrl-C ended it,
        otherwise the status of the worker that failed (128 + signal if it was killed). Where the supervisor itself
        fails, its workers save and stop first.
        """
        try:
            with self.run_dir.lock() as self._private, _signals_as_bytes() as wakeup:
                self._prepare()
                listening = Listening(
                    self.run_dir, self._private, self._answer, opened=self._listen, closed=self._selector.unregister
                )
                self._selector.register(wakeup, selectors.EVENT_READ, lambda: self._signalled(wakeup))
                try:
                    listening.ensure()
                    self._do(self._members.begin(self._now()))
                    while self._code is None:
                        self._turn(listening)
                except BaseException as error:
                    self._let_workers_save(error)
                    raise
                finally:
                    listening.close()
                    self._selector.close()
            self._log(f"the run ended with status {self._code}")
            return self._code
        finally:
            self._terminal.close()

    def _turn(self, listening: Listening) -> None:
        """Do what there is to do, once."""
        for key, _ in self._selector.select(_TICK_S):
            key.data()
        self._replay()
        self._do(self._members.tick(self._now()))
        self._reap([process for process in self._processes.values() if process.exit_fd is None])
        for member in self._processes:
            self._logs.look(member, self._prefix(member))
        if self._now() - self._looked_at >= _LOOK_S:
            self._looked_at = self._now()
            unread = self._terminal.stuck_s > _UNREAD_S
            self._troubles.report("terminal", "nobody reads the output; it is in the logs" * unread)
            self._troubles.report("disk", disk_trouble(self.run_dir.path))
            with contextlib.suppress(OSError):  # the next look tries again
                listening.ensure()

    def _let_workers_save(self, error: BaseException) -> None:
        """The supervisor itself has failed: workers see their connection end, save and stop; the rest is killed."""
        members, left = self._members.workers, dict(self._processes)
        self._log(f"the supervisor failed ({type(error).__name__}: {error}); the workers save and stop")
        for member, process in left.items():
            process.channel.close()
            if member not in members or members[member].phase == "starting":
                process.kill()
        deadline = self._now() + self.options.patience.grace_s
        while left and self._now() < deadline:
            left = {member: process for member, process in left.items() if process.poll() is None}
            time.sleep(_TICK_S)
        for process in left.values():
            process.kill()

    def _now(self) -> float:
        return time.monotonic()

    def _log(self, text: str) -> None:
        self._terminal.show(f"[swell] {text}")
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
        with contextlib.suppress(OSError):
            path = self.run_dir.logs / "supervisor.log"
            with open(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a") as file:
                file.write(f"{stamp} {text}\n")

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Start):
                try:
                    self._start(action)
                except OSError as error:
                    self._do(self._members.not_started(action.member, str(error), self._now()))
            elif isinstance(action, Announce):
                message = replace(action.generation, rendezvous=self._rendezvous(action.generation.number)).to_message()
                for process in list(self._processes.values()):
                    process.channel.send(message)  # a worker that does not read is dead or hung, and found as such
            elif isinstance(action, Ask):
                notice = action.notice
                seconds_left = None if notice.deadline is None else notice.deadline - self._now()
                facts = {"source": notice.source, "seconds_left": seconds_left, "leave": notice.leave}
                self._processes[action.member].channel.send({"say": "notice", **facts})
            elif isinstance(action, Release):
                self._processes[action.member].channel.send({"say": "release", "reason": action.reason})
            elif isinstance(action, Kill):
                self._log(f"worker {action.member} is ended: {action.reason}")
                self._processes[action.member].kill()
            elif isinstance(action, Log):
                self._log(action.text)
            elif isinstance(action, End):
                self._code = action.code

    def _rendezvous(self, number: int) -> str:
        """Where the members of a generation meet; a place that cannot be made is an error of theirs, not of ours."""
        try:
            return str(self._private.path() / f"generation-{number}")
        except OSError as error:
            self._log(f"there is no place for the workers to meet ({error}); make room in the temporary directory")
            return str(self.run_dir.control.resolve() / f"generation-{number}")

    def _start(self, action: Start) -> None:
        log = self.run_dir.logs / f"worker-{action.member}.log"
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        process = self.options.worker(
            self.options.command,
            member=action.member,
            slot=action.slot,
            run_dir=self.options.run_dir,
            log=log,
            threads=max(1, cores // self.options.sizes.largest),
            beat_s=self.options.beat_s,
            variables=self.options.variables,
        )
        self._processes[action.member] = process
        self._logs.add(action.member, log)
        self._selector.register(process.channel, selectors.EVENT_READ, lambda: self._hear(process))
        if process.exit_fd is not None:
            self._selector.register(process.exit_fd, selectors.EVENT_READ, lambda: self._reap([process]))
        process.channel.send({"say": "patience", **self._patience()})
        self._log(f"worker {action.member} started (pid {process.pid})")
        if process.unlogged:
            self._log(f"worker {action.member} has no log, because none can be written ({process.unlogged})")

    def _patience(self) -> dict[str, Any]:
        """What a worker must know in case the supervisor is gone one day."""
        stall_s = self.options.patience.stall_s
        return {"grace_s": self.options.patience.grace_s, "stall_s": None if stall_s == math.inf else stall_s}

    def _hear(self, process: WorkerProcess) -> None:
        if process.member not in self._processes:
            return
        try:
            messages = process.channel.receive()
        except WorldError as error:
            self._log(f"worker {process.member}: {error}")
            messages = None
        if messages is None:  # it has closed the channel; its exit is noticed separately
            self._forget(process.channel)
            return
        for message in messages:
            try:
                actions = self._take(process.member, message)
            except (KeyError, TypeError, ValueError):
                actions = [Log(f"worker {process.member} sent {message!r}, which is not a valid message")]
            self._do(actions)

    def _take(self, member: int, message: Mapping[str, Any]) -> list[Action]:
        """Hand a worker's message to the membership."""
        members, now, word = self._members, self._now(), message["say"]
        if word == "beat":
            return members.beat(member, message["progress"], now, Activity.from_message(message))
        if word == "ready":
            return members.ready(member, now)
        if word == "joined":
            return members.joined(member, message["number"], now)
        if word == "formed":
            if self._trained_since is None:
                self._trained_since = now
            return members.formed(member, message["number"], now)
        if word == "left":
            return members.left(member, message["number"], now, why=message.get("why", ""))
        if word == "leave":
            return members.asked_to_leave(member, message["source"], now)
        if word == "allow":
            return members.restrict(message["sizes"], now, why=message["why"])
        if word == "done":
            return members.done(member, now, alone=bool(message.get("alone")))
        if word == "trouble":
            self._troubles.report(f"worker {message['name']}", str(message["text"]))
            return []
        return [Log(f"worker {member} sent {word!r}, which this version does not understand")]

    def _reap(self, processes: list[WorkerProcess]) -> None:
        for process in processes:
            code = process.poll()
            if code is None or process.member not in self._processes:
                continue
            self._hear(process)  # its last messages came before its exit
            del self._processes[process.member]
            self._logs.remove(process.member, self._prefix(process.member))
            self._forget(process.channel)
            if process.exit_fd is not None:
                self._forget(process.exit_fd)
            process.close()
            error = script_error(process.log, process.log_start) if code > 0 else ""
            self._do(self._members.exited(process.member, code, self._now(), error=error))

    def _forget(self, source: Channel | int) -> None:
        with contextlib.suppress(KeyError):  # it was forgotten before
            self._selector.unregister(source)

    def _replay(self) -> None:
        """Follow the trace of worker counts, if there is one."""
        trace = self.options.trace
        if trace is None or self._trained_since is None:
            return
        target = self._members.sizes.nearest_below(trace.at(self._now() - self._trained_since))
        if target != self._trace_target:
            self._trace_target = target
            kill = self.options.trace_removals == "kill"
            with contextlib.suppress(ConfigError):  # the run is coming to its end
                self._do(self._members.resize(target, self._now(), kill=kill))

    def _prefix(self, member: int) -> str | None:
        """The prefix of a worker's lines on the terminal; None if they are not shown."""
        members = self._members.generation.members
        if self.options.show == "none" or (self.options.show == "first" and member not in members[:1]):
            return None
        return f"[{members.index(member)}] " if member in members else f"[worker {member}] "

    def _signalled(self, wakeup: socket.socket) -> None:
        for number in wakeup.recv(64):
            self._interrupts += number == signal.SIGINT
            if self._interrupts > 1:
                self._do(self._members.abort("interrupted twice: ending at once", 130, self._now()))
            else:
                self._do(self._members.stop(signal.Signals(number).name, self._now()))

    def _listen(self, server: ControlServer) -> None:
        self._selector.register(server, selectors.EVENT_READ, lambda: self._accept(server))

    def _accept(self, server: ControlServer) -> None:
        caller = server.accept()
        if caller is not None:
            self._selector.register(caller, selectors.EVENT_READ, lambda: self._serve(server, caller))

    def _serve(self, server: ControlServer, caller: Channel) -> None:
        if not server.serve(caller):
            self._forget(caller)
            caller.close()

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out a request from the control socket; an unknown word or a wrong argument is a ``ConfigError``."""
        now = self._now()
        reply = carry_out(request, self._members, self._processes, do=self._do, now=now)
        if request["say"] == "status":
            reply |= {
                "uptime_s": round(now - self._began_at, 3),
                "pid": os.getpid(),
                "command": list(self.options.command),
                "troubles": self._troubles.texts(),
                "lines_not_shown": self._terminal.dropped,
                "private_folder": str(self._private.present or ""),
            }
        return reply


@contextmanager
def _signals_as_bytes() -> Iterator[socket.socket]:
    """Signals as bytes on a socket, so that the loop handles them like everything else."""
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    numbers = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores some
    previous = {number: signal.signal(number, lambda *_: None) for number in numbers}
    descriptor = signal.set_wakeup_fd(far.fileno(), warn_on_full_buffer=False)
    try:
        yield near
    finally:
        signal.set_wakeup_fd(descriptor)
        for number, handler in previous.items():
            signal.signal(number, handler)
        near.close()
        far.close()


def supervise(
    options: RunOptions, *, write: Callable[[str], None] = print, prepare: Callable[[], None] = lambda: None
) -> int:
    """Supervise a run until it ends; returns its exit status (see ``Supervisor.run``).

    ``write`` takes each line for the terminal; ``prepare`` is called once the run's folder is locked.
    """
    try:
        return Supervisor(options, write=write, prepare=prepare).run()
    except OSError as error:
        raise SwellError(
            f"the supervisor failed ({error}); expected a run folder and a temporary directory it can use. Check both, "
            f"then bring the run back with `swell resume {options.run_dir}`."
        ) from error
