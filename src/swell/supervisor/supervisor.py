"""The supervisor: keeps the workers of a run going on one machine and announces who belongs to the world."""

from __future__ import annotations

import contextlib
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

from swell.errors import ConfigError, SwellError, WorldError
from swell.supervisor.actions import Action, Announce, Ask, End, Kill, Log, Release, Start
from swell.supervisor.channel import Channel
from swell.supervisor.control import ControlServer
from swell.supervisor.logs import LogFollower
from swell.supervisor.membership import Membership, OnFailure
from swell.supervisor.patience import Patience
from swell.supervisor.run_dir import RunDir
from swell.supervisor.sizes import WorldSizes
from swell.supervisor.status import run_status
from swell.supervisor.worker_process import WorkerProcess
from swell.supervisor.worker_trace import WorkerTrace

_TICK_S = 0.1
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


class Supervisor:
    """Runs in one thread: waits for messages and exits of workers, commands of the owner and signals, in any order."""

    def __init__(self, options: RunOptions, *, write: Callable[[str], None], prepare: Callable[[], None]) -> None:
        self.options = options
        self._prepare = prepare
        self.run_dir = RunDir(options.run_dir)
        self._write = write
        self._processes: dict[int, WorkerProcess] = {}
        self._selector = selectors.DefaultSelector()
        self._logs = LogFollower(self._show)
        self._members = Membership(
            options.sizes,
            target=options.start,
            max_restarts=options.max_restarts,
            on_failure=options.on_failure,
            patience=options.patience,
        )
        self._private = Path()
        self._began_at = time.monotonic()
        self._trained_since: float | None = None  # when the first generation was formed
        self._trace_target = options.start
        self._interrupts = 0
        self._code: int | None = None

    def run(self) -> int:
        """Supervise the run until it has finished, was stopped or failed; returns the exit status.

        0 when training finished, 143 when it was stopped and can be resumed, 130 when a second Ctrl-C ended it,
        otherwise the status of the worker that failed (128 + signal if it was killed).
        """
        with self.run_dir.lock() as self._private, _signals_as_bytes() as wakeup:
            self._prepare()
            server = ControlServer(self.run_dir.place_socket(self._private), self._answer)
            self._selector.register(server, selectors.EVENT_READ, lambda: self._accept(server))
            self._selector.register(wakeup, selectors.EVENT_READ, lambda: self._signalled(wakeup))
            try:
                self._do(self._members.begin(self._now()))
                while self._code is None:
                    for key, _ in self._selector.select(_TICK_S):
                        key.data()
                    self._replay()
                    self._do(self._members.tick(self._now()))
                    self._reap(list(self._processes.values()) if not hasattr(os, "pidfd_open") else [])
                    for member in self._processes:
                        self._logs.look(member, self._prefix(member))
            finally:
                for process in list(self._processes.values()):  # only if the supervisor itself failed
                    process.kill()
                server.close()
                self._selector.close()
        self._log(f"the run ended with status {self._code}")
        return self._code

    def _now(self) -> float:
        return time.monotonic()

    def _show(self, line: str) -> None:
        try:
            self._write(line)
        except (OSError, ValueError):  # the terminal or the pipe is gone; the run is not
            self._write = lambda line: None

    def _log(self, text: str) -> None:
        self._show(f"[swell] {text}")
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
        with contextlib.suppress(OSError), (self.run_dir.logs / "supervisor.log").open("a") as file:
            file.write(f"{stamp} {text}\n")

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Start):
                self._start(action)
            elif isinstance(action, Announce):
                rendezvous = self._private / f"generation-{action.generation.number}"
                message = replace(action.generation, rendezvous=str(rendezvous)).to_message()
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

    def _start(self, action: Start) -> None:
        log = self.run_dir.logs / f"worker-{action.member}.log"
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        process = WorkerProcess(
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
        self._log(f"worker {action.member} started (pid {process.pid})")

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
            return members.beat(member, message["progress"], now)
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
            return members.done(member, now)
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
            self._do(self._members.exited(process.member, code, self._now()))

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
        word, now = request["say"], self._now()
        if word == "status":
            return {
                **run_status(self._members, self._processes, now),
                "uptime_s": round(now - self._began_at, 3),
                "pid": os.getpid(),
                "command": list(self.options.command),
            }
        if word == "resize":
            workers = request.get("workers")
            if not isinstance(workers, int):
                raise ConfigError(f"workers is {workers!r}; expected a whole number.")
            self._do(self._members.resize(workers, now, kill=bool(request.get("kill"))))
            return {"target": self._members.target}
        if word == "stop":
            grace_s = request.get("grace_s")
            if grace_s is not None and not (isinstance(grace_s, (int, float)) and grace_s >= 0):
                raise ConfigError(f"grace_s is {grace_s!r}; expected seconds, 0 or more.")
            self._do(self._members.stop("swell stop", now, grace_s=grace_s))
            return {"stopping": True}
        if word == "chaos":
            return self._chaos(request)
        raise ConfigError(f"the command is {word!r}; expected status, resize, stop or chaos.")

    def _chaos(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a signal to a worker, by rank or by member."""
        name, member, rank = request.get("signal", "SIGKILL"), request.get("member"), request.get("rank")
        members = self._members.generation.members
        if member is None and isinstance(rank, int) and 0 <= rank < len(members):
            member = members[rank]
        known = isinstance(member, int) and member in self._processes
        if not (known and isinstance(name, str) and name.startswith("SIG") and hasattr(signal, name)):
            raise ConfigError(
                f"the request is to send {name!r} to rank {rank} or member {member}; expected the name of a signal "
                f"and a rank from 0 to {len(members) - 1} or a member of {sorted(self._processes)}."
            )
        process = self._processes[member]  # pyright: ignore[reportArgumentType]
        process.send_signal(getattr(signal, name))
        return {"member": member, "pid": process.pid}


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
            f"the supervisor failed ({error}); expected a run folder it can use and a command it can start. Check both."
        ) from error
