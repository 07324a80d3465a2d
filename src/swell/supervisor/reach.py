"""The machines of a run and their workers, as the supervisor reaches them: this one, and others by their agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swell.supervisor.agents import Agents
from swell.supervisor.generation import Generation
from swell.supervisor.local_workers import LocalWorkers
from swell.supervisor.notice import EXIT_RESUME
from swell.supervisor.places import HERE, Places
from swell.supervisor.status import RunningWorker


class Reach:
    """Sends orders to machines and messages to workers; ``running`` says which worker is where."""

    def __init__(self, local: LocalWorkers) -> None:
        self.running: dict[int, RunningWorker] = {}
        self.agents: Agents | None = None  # of other machines, where they may join
        self._local = local

    def order(self, node: int, order: Mapping[str, Any]) -> None:
        """Give an order to a machine."""
        if node == HERE:
            self._local.order(order)
        elif self.agents is not None:
            self.agents.order(node, order)

    def tell(self, member: int, message: Mapping[str, Any]) -> None:
        """Send a message to a worker."""
        if member in self.running:
            self.order(self.running[member].node, {"say": "send", "members": [member], "message": message})

    def tell_all(self, message: Mapping[str, Any]) -> None:
        """Send one message to all workers, the same line to each machine."""
        order = {"say": "send", "members": None, "message": message}
        self._local.order(order)
        if self.agents is not None:
            self.agents.order_all(order)

    def call(self, generation: Generation, *, meeting: str) -> None:
        """Tell each worker its part of a generation, in one order to each machine."""
        orders: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        for member, call in generation.calls(self.running, meeting=meeting):
            orders.setdefault(self.running[member].node, []).append((member, call.to_message()))
        for node, messages in orders.items():
            self.order(node, {"say": "each", "messages": messages})

    def forget_node(self, node: int) -> None:
        """A machine is gone, and its workers with it."""
        self.running = {member: worker for member, worker in self.running.items() if worker.node != node}

    def release_empty(self, places: Places) -> None:
        """Let machines go that were asked to leave and have no workers any more."""
        used = {worker.node for worker in self.running.values()}
        for node in list(places.nodes.values()):
            if self.agents is not None and node.leaving and node.number not in used:
                self.agents.dismiss(node.number, EXIT_RESUME, "this machine has left the run")
