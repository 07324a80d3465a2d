"""The supervisor: keeps the workers of a run going, here and on other machines, and announces each world."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from swell.core.harmless import harmless
from swell.core.regular_files import open_regular
from swell.errors import ConfigError, SwellError
from swell.supervisor.actions import Action, Announce, Ask, End, Kill, Log, Release, Start
from swell.supervisor.agent import PYTHON
from swell.supervisor.agents import Agents
from swell.supervisor.channel import Channel
from swell.supervisor.control import ControlServer
from swell.supervisor.decision_pace import DecisionPace
from swell.supervisor.interfaces import format_address, interface_of, sign_interval
from swell.supervisor.listening import Listening
from swell.supervisor.local_workers import LocalWorkers, cores
from swell.supervisor.meeting import Meeting
from swell.supervisor.membership import Membership, OnFailure
from swell.supervisor.patience import Patience
from swell.supervisor.places import HERE, Node, Places
from swell.supervisor.private_folder import PrivateFolder
from swell.supervisor.process_identity import own_identity
from swell.supervisor.reach import Reach
from swell.supervisor.requests import carry_out
from swell.supervisor.run_dir import RunDir
from swell.supervisor.run_token import keep_token
from swell.supervisor.secure_channel import RunIdentity
from swell.supervisor.signals import signals_as_bytes
from swell.supervisor.sizes import WorldSizes, from_runs
from swell.supervisor.stall import Activity
from swell.supervisor.states import StateOptions, States
from swell.supervisor.status import RunningWorker
from swell.supervisor.terminal import Terminal
from swell.supervisor.troubles import Troubles, disk_trouble
from swell.supervisor.worker_process import LOOPBACK, WorkerProcess, WorkerSettings
from swell.supervisor.worker_trace import WorkerTrace
from swell.version import __version__

_TICK_S = 0.1
_LOOK_S = 2.0  # between two looks at the disk, the terminal and the control socket
_UNREAD_S = 30.0  # without a line that the terminal takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """How the supervisor is reached from other machines."""

    host: str  # the numeric address of this machine at which it listens
    port: int
    slots: int  # workers on this machine at most
    token_file: str | None = None  # None for SWELL_TOKEN, else for a token of the run's own
    silence_s: float = 5.0  # from the moment that a machine cannot be reached until it counts as lost


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
    network: Network | None = None  # None for a run on this machine alone
    states: StateOptions | None = None  # None where nobody sees to copies of the run's states
    worker: type[WorkerProcess] = WorkerProcess  # how a worker of this machine is started


class Supervisor:
    """Runs in one thread: waits for messages and exits of workers, commands of the owner and signals, in any order.

    It gives the same orders to the workers of its own machine and to the agents of others, and hears the same reports.
    """

    def __init__(
        self,
        options: RunOptions,
        *,
        write: Callable[[str], None],
        prepare: Callable[[], None],
        listening: Callable[[str], None],
    ) -> None:
        self.options = options
        self._prepare, self._listening = prepare, listening
        self.run_dir = RunDir(options.run_dir)
        self._terminal = Terminal(write)
        self._selector = selectors.DefaultSelector()
        network = options.network
        self._members = Membership(
            options.sizes,
            target=options.start,
            max_restarts=options.max_restarts,
            on_failure=options.on_failure,
            patience=options.patience,
            places=None if network is None else Places([Node(HERE, socket.gethostname(), network.slots)]),
        )
        settings = WorkerSettings(
            command=options.command,
            run_dir=options.run_dir,
            threads=max(1, cores() // (options.sizes.largest if network is None else max(1, network.slots))),
            beat_s=options.beat_s,
            variables=options.variables,
            interface=LOOPBACK if network is None else _interface(network.host),
            address="127.0.0.1" if network is None else network.host,
        )
        self._local = LocalWorkers(
            settings, self._selector, lambda report: self.agent_reported(HERE, report), worker=options.worker
        )
        self._reach = Reach(self._local)
        self._meeting, self._pace = Meeting(), DecisionPace()
        self._states: States | None = None
        self._private = PrivateFolder(self.run_dir.control)
        self._troubles = Troubles(self._log)
        self._began_at = self._turned_at = time.monotonic()
        self._looked_at = self._beat_at = -math.inf
        silence_s = math.inf if network is None else network.silence_s
        self._sign_s = sign_interval(beat_s=options.beat_s, silence_s=silence_s)
        self._trained_since: float | None = None  # when the first generation was formed
        self._trace_target = options.start
        self._allowed: tuple[Any, str] | None = None  # what a worker said last of the numbers that its job can have
        self._interrupts = 0
        self._code: int | None = None

    def run(self) -> int:
        """Supervise the run until it has finished, was stopped or failed; returns the exit status.

        0 when training finished, 143 when it was stopped and can be resumed, 130 when a second Ctrl-C ended it,
        otherwise the status of the worker that failed (128 + signal if it was killed). Where the supervisor itself
        fails, its workers save and stop first.
        """
        try:
            with self.run_dir.lock() as self._private, signals_as_bytes() as wakeup:
                self._prepare()
                self._see_to_states()
                listening = Listening(
                    self.run_dir, self._private, self._answer, opened=self._listen, closed=self._selector.unregister
                )
                self._selector.register(wakeup, selectors.EVENT_READ, lambda: self._signalled(wakeup))
                try:
                    listening.ensure()
                    if self.options.network is not None:
                        self._open_to_agents(self.options.network)
                    self._do(self._members.begin(time.monotonic()))
                    while self._code is None:
                        self._turn(listening)
                    while self._states is not None and self._interrupts < 2 and self._states.unfinished():
                        self._turn(listening)
                except BaseException as error:
                    self._let_workers_save(error)
                    raise
                finally:
                    listening.close()
                    if self._reach.agents is not None:
                        self._reach.agents.close(self._code)
                    self._selector.close()
            assert self._code is not None
            self._log(f"the run ended with status {self._code}")
            return self._code
        finally:
            self._terminal.close()

    def _see_to_states(self) -> None:
        """Follow the states of the run, where other machines may have disks of their own or there is a mirror."""
        options = self.options.states
        if options is None or (self.options.network is None and options.mirror is None):
            return
        self._states = States(
            options,
            self.run_dir,
            self._members.places,
            patience_s=self.options.patience.grace_s,
            order=self._reach.order,
            log=self._log,
            trouble=self._troubles.report,
        )
        self._states.begin()
        self._members.may_begin = self._states.may_begin

    def _open_to_agents(self, network: Network) -> None:
        """Listen for the agents of other machines."""
        identity = RunIdentity(keep_token(self.run_dir, network.token_file))
        try:
            listener = identity.listen(network.host, network.port)
        except OSError as error:
            raise ConfigError(
                f"--listen is {format_address(network.host, network.port)}, where this process cannot listen "
                f"({error}); expected an address of this machine and a free port. Give another one."
            ) from error
        address = format_address(*listener.getsockname()[:2])
        self._reach.agents = Agents(
            listener,
            identity,
            self._selector,
            self,
            answer=self._answer,
            silence_s=network.silence_s,
            clock=time.monotonic,
        )
        if self._states is not None:
            self._reach.agents.on_state_link = self._states.link
        self.run_dir.write_listening(address)
        token = self.run_dir.token_file.resolve()
        self._log(f"other machines join with: swell agent {address} --token-file {token}")
        self._listening(address)

    def _turn(self, listening: Listening) -> None:
        """Do what there is to do, once: note all that has happened, then decide."""
        self._members.held = True
        try:
            wait_s = min(_TICK_S, self._sign_s, self._pace.wait_s(time.monotonic()) or _TICK_S)
            for key, _ in self._selector.select(wait_s):
                key.data()
        finally:
            self._members.held = False
        now, patience = time.monotonic(), self.options.patience
        if self._reach.agents is not None and now - self._turned_at > patience.hang_s / 2:
            self._reach.agents.forgive()
        self._turned_at = now
        if self._reach.agents is not None and now - self._beat_at >= self._sign_s:
            self._beat_at = now
            self._reach.agents.beat(hang_s=patience.hang_s)
        if not self._pace.wait_s(now):
            self._replay()
            self._do(self._members.tick(now))
            self._pace.decided(began=now, ended=time.monotonic())
        for member, message in self._meeting.news():
            self._reach.tell(member, message) if member is not None else self._reach.tell_all(message)
        self._local.look()
        if self._states is not None:
            self._states.look(now)
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            unread = self._terminal.stuck_s > _UNREAD_S
            self._troubles.report("terminal", "nobody reads the output; it is in the logs" * unread)
            self._troubles.report("disk", disk_trouble(self.run_dir.path))
            self._reach.release_empty(self._members.places)
            with contextlib.suppress(OSError):  # the next look tries again
                listening.ensure()

    def _let_workers_save(self, error: BaseException) -> None:
        """The supervisor itself has failed: workers see their connection end, save and stop; the rest is killed."""
        members = self._members.workers
        self._log(f"the supervisor failed ({type(error).__name__}: {error}); the workers save and stop")
        if self._reach.agents is not None:
            self._reach.agents.close(None)
        self._local.let_go(
            grace_s=self.options.patience.grace_s,
            only=lambda member: member in members and members[member].phase != "starting",
        )

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
                self._reach.running[action.member] = RunningWorker(action.member, node=action.node)
                self._reach.order(action.node, {"say": "start", "member": action.member, "slot": action.slot})
            elif isinstance(action, Announce):
                number = action.generation.number
                self._meeting.open(number)
                file = self._meeting_file(number) if self._reach.agents is None else ""
                self._reach.call(action.generation, meeting=file)
            elif isinstance(action, Ask):
                notice = action.notice
                seconds_left = None if notice.deadline is None else notice.deadline - time.monotonic()
                facts = {"source": notice.source, "seconds_left": seconds_left, "leave": notice.leave}
                self._reach.tell(action.member, {"say": "notice", **facts})
            elif isinstance(action, Release):
                self._reach.tell(action.member, {"say": "release", "reason": action.reason})
            elif isinstance(action, Kill):
                self._log(f"worker {action.member} is ended: {action.reason}")
                self._reach.order(self._reach.running[action.member].node, {"say": "kill", "member": action.member})
            elif isinstance(action, Log):
                self._log(action.text)
            elif isinstance(action, End):
                self._code = action.code

    def _meeting_file(self, number: int) -> str:
        """A file for the members of a generation on this machine; where there is no place, that is their error."""
        try:
            return str(self._private.path() / f"generation-{number}")
        except OSError as error:
            self._log(f"there is no place for the workers to meet ({error}); make room in the temporary directory")
            return str(self.run_dir.control.resolve() / f"generation-{number}")

    def agent_joined(self, hello: Mapping[str, Any], peer: str) -> tuple[int, dict[str, Any]]:
        """An agent offers the slots of its machine."""
        slots, name = hello.get("slots"), f"{hello.get('name')} ({peer})"
        if hello.get("version") != __version__:
            raise ConfigError(
                f"the agent on {name} has swell {hello.get('version')}; expected {__version__}, the supervisor's. "
                f"Install the same version on all machines."
            )
        if not isinstance(slots, int) or slots < 1:
            raise ConfigError(f"the agent on {name} offers {slots!r} slots; expected 1 or more.")
        node = self._members.places.join(name, slots, host=str(hello.get("machine", "")))
        self._log(f"machine {node} has joined: {name}, {slots} slots")
        options, patience = self.options, self.options.patience
        assert options.network is not None
        terms = {
            "command": [PYTHON if part == sys.executable else part for part in options.command],
            "folder": os.getcwd(),
            "run_dir": str(options.run_dir.resolve()),
            "variables": dict(options.variables),
            "supervisor": own_identity(),
            "beat_s": options.beat_s,
            "grace_s": patience.grace_s,
            "hang_s": patience.hang_s,
            "silence_s": options.network.silence_s,
            "show": options.show != "none",
            "states": self._states.invite(node) if self._states is not None and hello.get("states") else None,
        }
        return node, terms  # its first orders follow the next decision, and come after this answer

    def agent_reported(self, node: int, report: Mapping[str, Any]) -> None:
        """A machine says what happened to it or to one of its workers."""
        try:
            actions = self._note(node, report)
        except (KeyError, TypeError, ValueError):
            words = f"worker {report['member']}" if report.get("say") == "heard" else f"machine {node}"
            actions = [Log(f"{words} sent {report.get('message', report)!r}, which is not a valid message")]
        self._do(actions)

    def agent_lost(self, node: int, why: str) -> None:
        """A machine is gone, and its workers with it."""
        places, workers = self._members.places, self._members.workers.values()
        known, lost = places.nodes.get(node), [str(worker.member) for worker in workers if worker.node == node]
        if known is None:
            return
        if known.leaving and not lost:
            self._log(f"machine {node} ({known.name}) has left")
        else:
            self._log(f"machine {node} ({known.name}) is lost: {why}" + f"; workers {', '.join(lost)}" * bool(lost))
        places.lose(node)
        if self._states is not None:
            self._states.lost(node)
        self._reach.forget_node(node)
        self._do(self._members.fit(time.monotonic()))

    def _note(self, node: int, report: Mapping[str, Any]) -> list[Action]:
        """What follows from a report."""
        word, now = report["say"], time.monotonic()
        if word == "leaving":
            self._log(f"machine {node} was asked to leave ({report['source']})")
            self._members.places.drain(node, str(report["source"]))
            return self._members.fit(now)
        if word == "states":
            if self._states is not None:
                self._states.reported(node, report)
            return []
        member = report["member"]
        if member not in self._reach.running or self._reach.running[member].node != node:
            return []
        if word == "heard":
            return self._take(member, report["message"])
        if word == "lines":
            for line in report["lines"]:
                self._show(member, str(line))
        elif word == "started":
            self._reach.running[member] = RunningWorker(
                member, node=node, pid=int(report["pid"]), log=str(report["log"])
            )
            stall_s = self.options.patience.stall_s
            patience = {"grace_s": self.options.patience.grace_s, "stall_s": None if stall_s == math.inf else stall_s}
            self._reach.tell(member, {"say": "patience", **patience})  # in case the supervisor is gone one day
            where = "" if self._reach.agents is None else f" on machine {node}"
            self._log(f"worker {member} started{where} (pid {report['pid']})")
            if report["unlogged"]:
                self._log(f"worker {member} has no log, because none can be written ({report['unlogged']})")
        elif word == "not started":
            del self._reach.running[member]
            return self._members.not_started(member, str(report["why"]), now)
        elif word == "exited":
            del self._reach.running[member]
            return self._members.exited(member, int(report["code"]), now, error=str(report["error"]))
        return []

    def _take(self, member: int, message: Mapping[str, Any]) -> list[Action]:
        """Hand a worker's message to the membership."""
        members, now, word = self._members, time.monotonic(), message["say"]
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
            known, self._allowed = self._allowed, (message["sizes"], message["why"])
            if known == self._allowed:  # every worker of a job says the same
                return []
            return members.restrict(from_runs(message["sizes"]), now, why=message["why"])
        if word == "done":
            return members.done(member, now, alone=bool(message.get("alone")))
        if word == "trouble":
            self._troubles.report(f"worker {message['name']}", str(message["text"]))
            return []
        if word in ("set", "add"):
            self._meeting.take(member, message)
            return []
        if word == "nonsense":
            return [Log(f"worker {member}: {message['text']}")]
        return [Log(f"worker {member} sent {word!r}, which this version does not understand")]

    def _replay(self) -> None:
        """Follow the trace of worker counts, if there is one."""
        trace = self.options.trace
        if trace is None or self._trained_since is None:
            return
        target = self._members.sizes.nearest_below(trace.at(time.monotonic() - self._trained_since))
        if target != self._trace_target:
            self._trace_target = target
            kill = self.options.trace_removals == "kill"
            with contextlib.suppress(ConfigError):  # the run is coming to its end
                self._do(self._members.resize(target, time.monotonic(), kill=kill))

    def _show(self, member: int, line: str) -> None:
        """Show a line of a worker's output, after its rank, if its output is shown."""
        members = self._members.generation.members
        if self.options.show == "all" or (self.options.show == "first" and member in members[:1]):
            prefix = f"[{members.index(member)}] " if member in members else f"[worker {member}] "
            self._terminal.show(f"{prefix}{harmless(line)}")

    def _signalled(self, wakeup: socket.socket) -> None:
        for number in wakeup.recv(64):
            self._interrupts += number == signal.SIGINT
            if self._interrupts > 1:
                self._do(self._members.abort("interrupted twice: ending at once", 130, time.monotonic()))
            else:
                self._do(self._members.stop(signal.Signals(number).name, time.monotonic()))

    def _listen(self, server: ControlServer) -> None:
        self._selector.register(server, selectors.EVENT_READ, lambda: self._accept(server))

    def _accept(self, server: ControlServer) -> None:
        caller = server.accept()
        if caller is not None:
            self._selector.register(caller, selectors.EVENT_READ, lambda: self._serve(server, caller))

    def _serve(self, server: ControlServer, caller: Channel) -> None:
        if not server.serve(caller):
            self._selector.unregister(caller)
            caller.close()

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out a request of the owner; an unknown word or a wrong argument is a ``ConfigError``."""
        now = time.monotonic()
        self._members.held = False  # the answer says what follows
        reply = carry_out(request, self._members, self._reach.running, do=self._do, order=self._reach.order, now=now)
        if request["say"] == "status":
            reply |= {
                "uptime_s": round(now - self._began_at, 3),
                "pid": os.getpid(),
                "command": list(self.options.command),
                "troubles": self._troubles.texts(),
                "lines_not_shown": self._terminal.dropped,
                "private_folder": str(self._private.present or ""),
                "newest_state": {} if self._states is None else self._states.facts(),
            }
        return reply


def _interface(host: str) -> str:
    interface = interface_of(host)
    if interface is None:
        raise ConfigError(
            f"--listen is {host}; expected an address of this machine, by which the others reach it. Give one of those "
            f"that `ip address` shows."
        )
    return interface


def supervise(
    options: RunOptions,
    *,
    write: Callable[[str], None] = print,
    prepare: Callable[[], None] = lambda: None,
    listening: Callable[[str], None] = lambda address: None,
) -> int:
    """Supervise a run until it ends; returns its exit status (see ``Supervisor.run``).

    ``write`` takes each line for the terminal; ``prepare`` is called once the run's folder is locked, ``listening``
    with the address at which agents of other machines may join from now on.
    """
    try:
        return Supervisor(options, write=write, prepare=prepare, listening=listening).run()
    except OSError as error:
        raise SwellError(
            f"the supervisor failed ({error}); expected a run folder and a temporary directory it can use. Check both, "
            f"then bring the run back with `swell resume {options.run_dir}`."
        ) from error
