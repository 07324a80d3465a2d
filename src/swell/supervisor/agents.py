"""The other machines of a run, as its supervisor sees them: who connects, what they say, and when they are lost."""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from swell.errors import WorldError
from swell.supervisor.channel import Channel, encode
from swell.supervisor.control import Answer, reply_to
from swell.supervisor.interfaces import reach_quickly
from swell.supervisor.secure_channel import RunIdentity
from swell.supervisor.wire import Wire

_PROOF_S = 5.0  # for a caller to prove that it holds the token
_MOST_UNPROVED, _MOST_FROM_ONE = 64, 16  # callers that are still at it: in all, and from one address
_MOST_UNSENT = 2**28  # bytes that wait for an agent that does not read


class Owner(Protocol):
    """What is done with what agents say."""

    def agent_joined(self, hello: Mapping[str, Any], peer: str) -> tuple[int, dict[str, Any]]:
        """A machine offers its slots: the number it gets, and what it is told. ``ConfigError`` refuses it."""
        ...

    def agent_reported(self, node: int, report: Mapping[str, Any]) -> None:
        """A machine reports."""
        ...

    def agent_lost(self, node: int, why: str) -> None:
        """A machine is gone."""
        ...


@dataclass(slots=True)
class _Agent:
    node: int
    wire: Wire
    heard_at: float


class Agents:
    """Listens for agents and for owners who control the run from another machine; both hold the run's token.

    A caller proves that in a thread of its own, so that one that says nothing holds up nobody.
    """

    def __init__(
        self,
        listener: socket.socket,
        identity: RunIdentity,
        selector: selectors.BaseSelector,
        owner: Owner,
        *,
        answer: Answer,
        silence_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._listener, self._identity, self._selector, self._owner = listener, identity, selector, owner
        self._answer, self._silence_s, self._clock = answer, silence_s, clock
        self.on_state_link: Callable[[str, socket.socket], None] = lambda ticket, end: end.close()
        self._agents: dict[int, _Agent] = {}
        self._callers: dict[int, Wire] = {}
        self._unproved: Counter[str] = Counter()
        self._proved: queue.SimpleQueue[tuple[str, socket.socket | None]] = queue.SimpleQueue()
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ, self._accept)
        selector.register(self._near, selectors.EVENT_READ, self._welcome)

    def order(self, node: int, order: Mapping[str, Any]) -> None:
        """Send an order to a machine; one that does not take it any more is lost."""
        self._send([node], encode(order))

    def order_all(self, order: Mapping[str, Any]) -> None:
        """Send the same order to every machine."""
        self._send(list(self._agents), encode(order))

    def _send(self, nodes: Iterable[int], line: bytes) -> None:
        for node in nodes:
            agent = self._agents.get(node)
            if agent is not None and not agent.wire.send_line(line):
                self._lose(agent, "does not read")

    def beat(self, *, hang_s: float) -> None:
        """Give every machine a sign of life, and give up those that have given none for ``hang_s``.

        Machines that the network does not reach are found by the kernel, and much sooner: it wants this message
        confirmed within ``silence_s``.
        """
        for agent in list(self._agents.values()):
            silent_s = self._clock() - agent.heard_at
            if silent_s > hang_s:
                self._lose(agent, f"gave no sign of life for {silent_s:.0f} s")
        self.order_all({"say": "beat"})

    def forgive(self) -> None:
        """This process has slept: what the machines said meanwhile may wait to be read."""
        for agent in self._agents.values():
            agent.heard_at = self._clock()

    def dismiss(self, node: int, code: int, why: str) -> None:
        """Let a machine go that has no workers left."""
        self.order(node, {"say": "end", "code": code, "why": why})

    def close(self, code: int | None) -> None:
        """Tell all machines that the run has ended, if it has, and hang up."""
        for agent in list(self._agents.values()):
            if code is not None:
                agent.wire.send({"say": "end", "code": code, "why": "the run has ended"})
            agent.wire.close()
        for caller in list(self._callers.values()):
            caller.close()
        for end in (self._listener, self._near):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(end)
            end.close()

    def _accept(self) -> None:
        try:
            connection, peer = self._listener.accept()
        except OSError:
            return
        host = str(peer[0])
        if self._unproved.total() >= _MOST_UNPROVED or self._unproved[host] >= _MOST_FROM_ONE:
            connection.close()
            return
        self._unproved[host] += 1
        threading.Thread(target=self._prove, args=(connection, host), name="swell-proof", daemon=True).start()

    def _prove(self, connection: socket.socket, host: str) -> None:
        """In a thread of its own: hand the connection over once its other end has proved that it holds the token."""
        secured = None
        with contextlib.suppress(WorldError, OSError):
            reach_quickly(connection, silence_s=self._silence_s)
            secured = self._identity.accept(connection, timeout_s=_PROOF_S)
            secured.setblocking(False)
        self._proved.put((host, secured))
        with contextlib.suppress(OSError):
            self._far.send(b"+")

    def _welcome(self) -> None:
        with contextlib.suppress(OSError):
            self._near.recv(4096)
        while True:
            try:
                host, connection = self._proved.get_nowait()
            except queue.Empty:
                return
            self._unproved[host] -= 1
            self._unproved += Counter()  # without those that are done
            if connection is not None:
                channel = Channel(connection, most_unsent=_MOST_UNSENT)
                caller = Wire(channel, self._selector, lambda c=channel, h=host: self._hear_caller(c, h))
                self._callers[id(channel)] = caller
                self._hear_caller(channel, host)  # its first message may have come with the proof

    def _hear_caller(self, channel: Channel, host: str) -> None:
        """Someone with the token: an agent that introduces itself, or an owner who asks and commands."""
        wire = self._callers.get(id(channel))
        if wire is None:
            return
        messages = _received(channel)
        for position, message in enumerate(messages or ()):
            if message["say"] == "state link":
                self._callers.pop(id(channel)).forget()
                self.on_state_link(str(message.get("ticket")), channel.detach())
                return
            if message["say"] != "agent":
                wire.send(reply_to(message, self._answer))
                continue
            reply = reply_to(message, lambda hello: self._introduce(channel, hello, host))
            wire.send(reply)
            agent = self._agents.get(reply.get("node", -1))
            if agent is not None:
                for later in (messages or [])[position + 1 :]:
                    self._owner.agent_reported(agent.node, later)
                return
        if messages is None:
            self._callers.pop(id(channel)).close()

    def _introduce(self, channel: Channel, hello: Mapping[str, Any], host: str) -> dict[str, Any]:
        node, terms = self._owner.agent_joined(hello, host)
        old = self._callers.pop(id(channel))
        old.forget()
        agent = _Agent(node, old, self._clock())
        agent.wire = Wire(channel, self._selector, lambda: self._hear(agent))
        self._agents[node] = agent
        return {"node": node, **terms}

    def _hear(self, agent: _Agent) -> None:
        if agent.node not in self._agents:
            return
        messages = _received(agent.wire.channel)
        if messages is None:
            self._lose(agent, "its connection has ended")
            return
        agent.heard_at = self._clock()
        for message in messages:
            if message["say"] != "beat":
                self._owner.agent_reported(agent.node, message)

    def _lose(self, agent: _Agent, why: str) -> None:
        if self._agents.pop(agent.node, None) is not None:
            agent.wire.close()
            self._owner.agent_lost(agent.node, why)


def _received(channel: Channel) -> list[dict[str, Any]] | None:
    try:
        return channel.receive()
    except WorldError:
        return None
