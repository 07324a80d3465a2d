"""Where workers can be: the machines of a run and their slots.

A machine alone has as many slots as it is asked for. Machines of a run with several have a number each, and what they
have together is the room of the run.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from swell.supervisor.start_pause import StartPause

HERE = 0  # the number of the supervisor's own machine


@dataclass(slots=True)
class Node:
    """One machine: a slot (0, 1, ...) is the place of one worker, and the number of its device there."""

    number: int
    name: str
    slots: float  # infinite where there is no limit
    host: str = ""  # agents with the same are on one machine; empty for a machine of its own
    leaving: str = ""  # why its workers must go; no new ones are placed there
    pause: StartPause = field(default_factory=StartPause)
    lowest: int = 0  # slots from here on were never used
    freed: list[int] = field(default_factory=list)  # a heap of used ones
    withdrawn: set[int] = field(default_factory=set)  # slots that are never used again

    @property
    def open_slots(self) -> float:
        """Slots that workers may have."""
        return 0 if self.leaving else self.slots - len(self.withdrawn)

    def take(self) -> int | None:
        """The lowest free slot; None where all are taken."""
        while self.freed:
            slot = heapq.heappop(self.freed)
            if slot not in self.withdrawn:
                return slot
        if self.lowest >= self.slots:
            return None
        self.lowest += 1
        return self.lowest - 1


class Places:
    """The slots of all machines; workers fill the machine that joined first, then the next.

    >>> places = Places([Node(0, "one", 1), Node(1, "two", 1)])
    >>> places.room, places.take(now=0.0), places.take(now=0.0), places.take(now=0.0)
    (2, (0, 0), (1, 0), None)
    >>> places.free(0, 0)
    >>> places.take(now=0.0)
    (0, 0)
    """

    def __init__(self, nodes: list[Node] | None = None) -> None:
        self.nodes: dict[int, Node] = {}
        self.room: float = 0  # slots that workers may have, over all machines
        self._last = HERE - 1
        self._open: list[int] = []  # a heap of machines that may have a free slot
        for node in [Node(HERE, "this machine", math.inf)] if nodes is None else nodes:
            self._add(node)

    @property
    def endless(self) -> bool:
        """Whether there is always room: a run on one machine, which starts what it is asked for."""
        return self.room == math.inf

    def join(self, name: str, slots: int, *, host: str = "") -> int:
        """A machine has come; its number, never used before."""
        return self._add(Node(self._last + 1, name, slots, host)).number

    def count_hosts(self, numbers: Iterable[int]) -> int:
        """On how many machines these are, where several agents may be on one.

        >>> places = Places([Node(0, "head", 1), Node(1, "a", 1, "x"), Node(2, "b", 1, "x")])
        >>> places.count_hosts([0, 1, 2, 2])
        2
        """
        nodes = [self.nodes[number] for number in set(numbers) if number in self.nodes]
        return len({node.host or node.number for node in nodes})

    def lose(self, number: int) -> None:
        """A machine is gone, and with it whatever ran there."""
        node = self.nodes.pop(number, None)
        if node is not None:
            self.room -= node.open_slots

    def drain(self, number: int, why: str) -> None:
        """A machine is about to go: no more workers there."""
        node = self.nodes.get(number)
        if node is not None and not node.leaving:
            self.room -= node.open_slots
            node.leaving = why

    def take(self, *, now: float) -> tuple[int, int] | None:
        """A free place, as machine and slot; None where there is no room now, or none before a pause is over."""
        paused, place = [], None
        while self._open and place is None:
            node = self.nodes.get(self._open[0])
            if node is None or node.leaving:
                heapq.heappop(self._open)
            elif now < node.pause.at:
                paused.append(heapq.heappop(self._open))
            elif (slot := node.take()) is None:
                heapq.heappop(self._open)
            else:
                place = (node.number, slot)
        for number in paused:
            heapq.heappush(self._open, number)
        return place

    def free(self, number: int, slot: int) -> None:
        """The worker of a place is gone."""
        node = self.nodes.get(number)
        if node is not None and slot not in node.withdrawn:
            heapq.heappush(node.freed, slot)
            heapq.heappush(self._open, number)

    def withdraw(self, number: int, slot: int) -> bool:
        """Never use a place again; False where that would change nothing, because there are endlessly many."""
        node = self.nodes.get(number)
        if self.endless or node is None:
            return not self.endless
        if slot not in node.withdrawn:
            self.room -= 0 if node.leaving else 1
            node.withdrawn.add(slot)
        return True

    def _add(self, node: Node) -> Node:
        self.nodes[node.number] = node
        self.room += node.open_slots
        self._last = max(self._last, node.number)
        heapq.heappush(self._open, node.number)
        return node
