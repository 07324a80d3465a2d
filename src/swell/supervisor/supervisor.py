"""The supervisor: keeps the workers of a run up on one machine and tells them who belongs to the world."""

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
from swell.supervisor.roster import Patience
from swell.supervisor.run_dir import RunDir
from swell.supervisor.sizes import WorldSizes
from swell.supervisor.worker_process import WorkerProcess
from swell.supervisor.worker_trace import WorkerTrace

_TICK_S = 0.1
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a run is kept up."""

    command: tuple[str, ...]  # what every worker runs
    run_dir: Path
    sizes: WorldSizes
    start: int  # workers to begin with
    max_restarts: int = 3
    on_failure: OnFailure = "restart"
    patience: Patience = field(default_factory=Patience)
    beat_s: float = 1.0
    trace: WorkerTrace | None = None
    trace_removals: Literal["notice", "kill"] = "notice"
    show: Literal["all", "first", "none"] = "all"  # whose output goes to the terminal
    variables: Mapping[str, str] = field(default_factory=dict)  # more of them for the workers' environment


class Supervisor:
    """Runs in one thread: waits for workers' words, their deaths, its owner's commands and signals, in any order."""

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
        self._began = time.monotonic()
        self._trained_since: float | None = None  # when the first generation was formed
        self._traced = options.start
        self._interrupts = 0
        self._code: int | None = None

    def run(self) -> int:
        """Keep the run up until it has finished, was stopped or failed; returns the exit status.

        0 when the training came to its end, 143 when it was stopped and can be resumed, 130 when a second Ctrl-C ended
        it, otherwise the status of the worker that failed (128 + signal for one that was killed).
        """
        with self.run_dir.held() as self._private, self._signals() as wakeup:
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
                for process in list(self._processes.values()):  # only when we ourselves failed
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
                meeting = self._private / f"generation-{action.generation.number}"
                message = replace(action.generation, rendezvous=str(meeting)).to_message()
                for process in list(self._processes.values()):
                    self._send(process, message)
            elif isinstance(action, Ask):
                notice = action.notice
                left = None if notice.deadline is None else notice.deadline - self._now()
                facts = {"source": notice.source, "seconds_left": left, "leave": notice.leave}
                self._send(self._processes[action.member], {"say": "notice", **facts})
            elif isinstance(action, Release):
                self._send(self._processes[action.member], {"say": "release", "reason": action.reason})
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

    def _send(self, process: WorkerProcess, message: Mapping[str, Any]) -> None:
        process.channel.send(message)  # one that does not read is dead or hung, and found as such

    def _hear(self, process: WorkerProcess) -> None:
        if process.member not in self._processes:
            return
        try:
            messages = process.channel.receive()
        except WorldError as error:
            self._log(f"worker {process.member}: {error}")
            messages = None
        if messages is None:  # it has closed the channel; its end is seen when it comes
            self._forget(process.channel)
            return
        for message in messages:
            try:
                actions = self._heard(process.member, message)
            except (KeyError, TypeError, ValueError):
                actions = [Log(f"worker {process.member} said {message!r}, which makes no sense")]
            self._do(actions)

    def _heard(self, member: int, message: Mapping[str, Any]) -> list[Action]:
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
        return [Log(f"worker {member} said {word!r}, which this version does not understand")]

    def _reap(self, processes: list[WorkerProcess]) -> None:
        for process in processes:
            code = process.poll()
            if code is None or process.member not in self._processes:
                continue
            self._hear(process)  # its last words came before its end
            del self._processes[process.member]
            self._logs.remove(process.member, self._prefix(process.member))
            self._forget(process.channel)
            if process.exit_fd is not None:
                self._forget(process.exit_fd)
            process.close()
            self._do(self._members.exited(process.member, code, self._now()))

    def _forget(self, source: Channel | int) -> None:
        with contextlib.suppress(KeyError):  # was forgotten before
            self._selector.unregister(source)

    def _replay(self) -> None:
        trace = self.options.trace
        if trace is None or self._trained_since is None:
            return
        wanted = self._members.sizes.nearest_below(trace.at(self._now() - self._trained_since))
        if wanted != self._traced:
            self._traced = wanted
            kill = self.options.trace_removals == "kill"
            with contextlib.suppress(ConfigError):  # the run is coming to its end
                self._do(self._members.resize(wanted, self._now(), kill=kill))

    def _prefix(self, member: int) -> str | None:
        """What stands before a worker's lines on the terminal; None where they are not shown."""
        members = self._members.generation.members
        if self.options.show == "none" or (self.options.show == "first" and member not in members[:1]):
            return None
        return f"[{members.index(member)}] " if member in members else f"[worker {member}] "

    @contextmanager
    def _signals(self) -> Iterator[socket.socket]:
        """Signals as bytes on a socket, so that they are taken up in the loop like everything else."""
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup and its like
        previous = {number: signal.signal(number, lambda *_: None) for number in heeded}
        descriptor = signal.set_wakeup_fd(far.fileno(), warn_on_full_buffer=False)
        try:
            yield near
        finally:
            signal.set_wakeup_fd(descriptor)
            for number, handler in previous.items():
                signal.signal(number, handler)
            near.close()
            far.close()

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
        """What the control socket does; an unknown word or a wrong argument is refused."""
        word, now = request["say"], self._now()
        if word == "status":
            return self.status()
        if word == "resize":
            workers = request.get("workers")
            if not isinstance(workers, int):
                raise ConfigError(f"resize needs a number of workers, got {workers!r}.")
            self._do(self._members.resize(workers, now, kill=bool(request.get("kill"))))
            return {"target": self._members.target}
        if word == "stop":
            grace_s = request.get("grace_s")
            if grace_s is not None and not (isinstance(grace_s, (int, float)) and grace_s >= 0):
                raise ConfigError(f"stop needs seconds of grace of at least 0, got {grace_s!r}.")
            self._do(self._members.stop("swell stop", now, grace_s=grace_s))
            return {"stopping": True}
        if word == "chaos":
            return self._chaos(request)
        raise ConfigError(f"{word!r} is no command of a run, expected status, resize, stop or chaos.")

    def _chaos(self, request: Mapping[str, Any]) -> dict[str, Any]:
        name, member, rank = request.get("signal", "SIGKILL"), request.get("member"), request.get("rank")
        members = self._members.generation.members
        if member is None and isinstance(rank, int) and 0 <= rank < len(members):
            member = members[rank]
        known = isinstance(member, int) and member in self._processes
        if not (known and isinstance(name, str) and name.startswith("SIG") and hasattr(signal, name)):
            raise ConfigError(
                f"cannot send {name!r} to rank {rank} or worker {member}: expected a signal and a rank from 0 to "
                f"{len(members) - 1} or a worker of {sorted(self._processes)}."
            )
        process = self._processes[member]  # pyright: ignore[reportArgumentType]
        process.send_signal(getattr(signal, name))
        return {"member": member, "pid": process.pid}

    def status(self) -> dict[str, Any]:
        """What is known of the run, for people and programs."""
        members, now = self._members, self._now()
        newest = members.generation
        formed = bool(newest.members) and all(
            member in members.workers and members.workers[member].formed == newest.number for member in newest.members
        )
        state = "finishing" if members.finishing else "stopping" if members.stopping else "training"
        if state == "training" and not formed:
            state = "forming" if newest.number else "starting"
        return {
            "state": state,
            "target": members.target,
            "allowed": list(members.sizes.allowed),
            "generation": newest.number,
            "members": list(newest.members),
            "restarts": members.restarts,
            "max_restarts": members.max_restarts,
            "uptime_s": round(now - self._began, 3),
            "pid": os.getpid(),
            "command": list(self.options.command),
            "workers": [
                {
                    "member": worker.member,
                    "rank": newest.members.index(worker.member) if worker.member in newest.members else None,
                    "pid": self._processes[worker.member].pid,
                    "slot": worker.slot,
                    "phase": worker.phase,
                    "steps": worker.progress,
                    "silent_s": round(now - worker.heard, 3),
                    "log": str(self._processes[worker.member].log),
                }
                for worker in members.workers.values()
                if worker.member in self._processes
            ],
        }


def supervise(
    options: RunOptions, *, write: Callable[[str], None] = print, prepare: Callable[[], None] = lambda: None
) -> int:
    """Keep a run up until it ends; returns its exit status (see ``Supervisor.run``).

    ``write`` takes each line for the terminal; ``prepare`` is called once the run's folder is held.
    """
    try:
        return Supervisor(options, write=write, prepare=prepare).run()
    except OSError as error:
        raise SwellError(f"the run could not be kept up: {error}. Check the run folder and the command.") from error
