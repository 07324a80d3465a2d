"""An agent: starts and watches workers on its machine, on the word of a run's supervisor on another one."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swell.core.harmless import harmless
from swell.errors import ConfigError, WorldError
from swell.supervisor.agent_states import AgentStates
from swell.supervisor.channel import Channel
from swell.supervisor.interfaces import format_address, interface_of, reach_quickly, sign_interval
from swell.supervisor.local_workers import LocalWorkers, cores
from swell.supervisor.notice import EXIT_RESUME
from swell.supervisor.secure_channel import RunIdentity
from swell.supervisor.signals import signals_as_bytes
from swell.supervisor.wire import Wire
from swell.supervisor.worker_process import WorkerSettings
from swell.version import __version__

_TICK_S = 0.1
_CONNECT_S = 5.0
_RETRY_S = 0.5
_MOST_UNSENT = 2**26
_LONGEST_REASON = 200
PYTHON = "{python}"  # stands for the interpreter of the machine that runs a command


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """Where the supervisor is, and what this machine offers."""

    host: str
    port: int
    slots: int  # workers at most
    folder: Path | None = None  # where the script runs; None for the supervisor's own folder
    run_dir: Path | None = None  # None for the supervisor's own path
    wait_s: float = 600.0  # for a supervisor that does not answer, at the start or again
    machine: str = ""  # agents with the same are on one machine; empty for a machine of its own
    leash: int | None = None  # a descriptor: when its other end is closed, this machine leaves; what it says is why


class Agent:
    """Keeps one connection to the supervisor and the workers that it orders.

    When the connection is lost, the workers save and stop, as they do when their supervisor is gone, and the agent
    offers its machine again. When the agent itself is killed, the kernel kills its workers.
    """

    def __init__(
        self,
        options: AgentOptions,
        identity: RunIdentity,
        *,
        write: Callable[[str], None],
        states: AgentStates | None = None,
    ) -> None:
        self.options, self._identity, self._write, self._states = options, identity, write, states
        self._selector = selectors.DefaultSelector()
        self._workers: LocalWorkers | None = None
        self._wire: Wire | None = None
        self._end: int | None = None  # the exit status, once there is one
        self._leaving = self._why = ""
        self._terms: Mapping[str, Any] = {}
        self._heard_at = 0.0

    def run(self) -> int:
        """Serve one supervisor after another until one has ended the run, or none answers; the exit status.

        The run's own status when it has ended, 143 when this machine was asked to leave and has left, or when the
        supervisor is gone and does not come back.
        """
        with signals_as_bytes() as wakeup:
            self._selector.register(wakeup, selectors.EVENT_READ, lambda: self._signalled(wakeup))
            if self.options.leash is not None:
                self._selector.register(self.options.leash, selectors.EVENT_READ, self._pulled)
            served = False
            while self._end is None:
                if not self._find():
                    if self._end is None and not served:
                        raise ConfigError(
                            f"no supervisor answers at {format_address(self.options.host, self.options.port)}; "
                            f"expected one within {self.options.wait_s:g} s. Start it with `swell run --listen`, and "
                            f"check the address, the network between the two machines and the token."
                        )
                    break
                served = True
                self._serve()
        return EXIT_RESUME if self._end is None else self._end

    def _find(self) -> bool:
        """Connect and introduce this machine; False where nobody answers in time or a signal came."""
        deadline, told = time.monotonic() + self.options.wait_s, ""
        while self._end is None:
            try:
                self._introduce()
            except WorldError as error:
                if str(error) != told:
                    told = str(error)
                    self._say(told)
                if time.monotonic() > deadline:
                    return False
                self._wait(_RETRY_S)
            else:
                return True
        return False

    def _introduce(self) -> None:
        host, port = self.options.host, self.options.port
        connection = self._identity.connect(host, port, timeout_s=_CONNECT_S)
        address = str(connection.getsockname()[0])
        hello = {
            "name": socket.gethostname(),
            "machine": self.options.machine,
            "slots": self.options.slots,
            "version": __version__,
            "pid": os.getpid(),
            "states": self._states is not None,  # whether it says which states are on its disk
        }
        connection.setblocking(False)
        channel = Channel(connection, most_unsent=_MOST_UNSENT)
        channel.send({"say": "agent", **hello})
        deadline = time.monotonic() + _CONNECT_S
        messages: list[dict[str, Any]] | None = []
        while not messages and messages is not None and time.monotonic() < deadline:
            time.sleep(0.005)
            messages = channel.receive()
        if not messages:
            channel.close()
            raise WorldError(f"the supervisor at {format_address(host, port)} does not answer; it is asked again")
        terms, *rest = messages
        if not terms.get("ok"):
            channel.close()
            raise ConfigError(str(terms.get("error")))
        reach_quickly(connection, silence_s=terms["silence_s"])
        self._terms, self._heard_at = terms, time.monotonic()
        settings = self._settings(terms, address)
        if self._states is not None:
            facts = {"folder": Path.cwd(), "identity": self._identity, "address": (host, port)}
            self._states.begin(settings.run_dir, terms, **facts)
        self._workers = LocalWorkers(settings, self._selector, self._report)
        self._wire = Wire(channel, self._selector, self._hear)
        self._say(f"joined the run as machine {terms['node']} with {self.options.slots} slots ({settings.interface})")
        self._take(rest)

    def _settings(self, terms: Mapping[str, Any], address: str) -> WorkerSettings:
        folder = self.options.folder or Path(terms["folder"])
        try:
            os.chdir(folder)
        except OSError as error:
            raise ConfigError(
                f"the folder of the run is {str(folder)!r}, which this machine does not have ({error}); expected the "
                f"folder with the script. Share it between the machines, or give its place here as --folder."
            ) from error
        interface = interface_of(address)
        if interface is None:
            raise ConfigError(f"this machine has no interface with the address {address}; expected one. Report this.")
        command = tuple(sys.executable if part == PYTHON else part for part in terms["command"])
        run_dir = self.options.run_dir or Path(terms["run_dir"])
        variables = dict(terms["variables"])
        if "SWELL_RUN_DIR" in variables:
            variables["SWELL_RUN_DIR"] = str(run_dir)
        return WorkerSettings(
            command=command,
            run_dir=run_dir,
            threads=max(1, cores() // max(1, self.options.slots)),
            beat_s=terms["beat_s"],
            variables=variables,
            interface=interface,
            address=address,
            supervisor=terms["supervisor"],
            bound=True,
        )

    def _serve(self) -> None:
        """Work for the present supervisor until it ends the run, or is gone."""
        assert self._workers is not None
        beat_at = 0.0
        while self._wire is not None:
            now = time.monotonic()
            if now >= beat_at:
                if now - beat_at > self._terms["hang_s"] / 2:  # this process slept
                    self._heard_at = now
                beat_at = now + sign_interval(beat_s=self._terms["beat_s"], silence_s=self._terms["silence_s"])
                self._send({"say": "beat"})
            if now - self._heard_at > self._terms["hang_s"]:
                self._lose("gave no sign of life")
                break
            self._wait(_TICK_S)
            self._workers.look()
            if self._states is not None:
                self._states.look(time.monotonic(), self._send)
        grace_s = 0.0
        if self._end is None and len(self._workers):
            if self._supervisor_lives():
                self._say("the supervisor goes on without the workers of this machine: they end")
            else:
                grace_s = self._terms["grace_s"]
                self._say(f"the supervisor is gone; the workers of this machine have {grace_s:g} s to save and stop")
        self._workers.let_go(grace_s=grace_s)
        if self._end is None and self._states is not None and (words := self._states.newest()):
            self._say(words)
        if self._end is None and self._leaving:
            self._end = EXIT_RESUME

    def _supervisor_lives(self) -> bool:
        """Whether only the connection is gone.

        Then the supervisor has given up these workers, and a stop of theirs must not stop those of other machines.
        """
        try:
            patience_s = min(_CONNECT_S, self._terms["silence_s"])
            self._identity.connect(self.options.host, self.options.port, timeout_s=patience_s).close()
        except WorldError:
            return False
        return True

    def _wait(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            key.data()

    def _report(self, report: dict[str, Any]) -> None:
        if report["say"] == "exited" and self._states is not None:
            self._states.look(math.inf, self._send)  # it may have saved last
        if report["say"] != "lines" or self._terms["show"]:
            self._send(report)

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._wire is not None and not self._wire.send(message):
            self._lose("does not read")

    def _hear(self) -> None:
        if self._wire is None:
            return
        try:
            messages = self._wire.channel.receive()
        except WorldError as error:
            self._lose(str(error))
            return
        if messages is None:
            self._lose("its connection has ended")
            return
        self._heard_at = time.monotonic()
        self._take(messages)

    def _take(self, messages: list[dict[str, Any]]) -> None:
        assert self._workers is not None
        for message in messages:
            if message["say"] == "end":
                self._say(f"{message['why']} (status {message['code']})")
                self._end = message["code"]
                if self._wire is not None:
                    self._wire.close()
                    self._wire = None
            elif message["say"] != "beat" and (self._states is None or not self._states.order(message)):
                self._workers.order(message)

    def _lose(self, why: str) -> None:
        if self._wire is not None:
            self._say(f"the supervisor is lost: {why}")
            self._wire.close()
            self._wire = None

    def _signalled(self, wakeup: socket.socket) -> None:
        for number in wakeup.recv(64):
            name = signal.Signals(number).name
            if self._leaving and number == signal.SIGINT:
                self._end = 130
                if self._wire is not None:
                    self._wire.close()
                    self._wire = None
            else:
                self._leave(name)

    def _pulled(self) -> None:
        assert self.options.leash is not None
        text = os.read(self.options.leash, 4096)
        self._why += text.decode(errors="replace")
        if not text:
            self._selector.unregister(self.options.leash)
            self._leave(self._why.strip()[:_LONGEST_REASON] or "whoever started the agent is gone")

    def _leave(self, source: str) -> None:
        if not self._leaving:
            self._leaving = source
            self._say(f"{source}: this machine leaves the run")
            if self._wire is None:
                self._end = EXIT_RESUME
            self._send({"say": "leaving", "source": source})

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._write(f"[swell agent] {harmless(text)}")
