"""Replicas of one run as threads that take turns, so that a history of losses and resizes is the same every time.

The stage plays the supervisor and the network. One replica runs at a time, until it waits for others; then the next one
that can go on does, in a fixed order. So a history needs no clock, and a deadlock is found at once.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from swell.errors import WorldError
from swell.supervisor.notice import Notice


class Killed(BaseException):
    """Ends a replica's thread without a word to anybody."""


class Dismissed(BaseException):
    """There is no place for this replica any more."""


class Actor:
    """One replica: a thread that runs only while it has the stage."""

    def __init__(self, stage: Stage, number: int, body: Callable[[Actor], None]) -> None:
        self.number, self._stage = number, stage
        self._turn = threading.Semaphore(0)
        self._can_go_on: Callable[[], bool] = lambda: True
        self.over, self.killed = False, False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(body,), daemon=True)
        self._thread.start()

    def _run(self, body: Callable[[Actor], None]) -> None:
        self._turn.acquire()
        try:
            if not self.killed:
                body(self)
        except (Killed, Dismissed, SystemExit):
            pass
        except BaseException as error:
            self.error = error
        self.over = True
        self._stage.back.release()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Give the stage to others until the condition holds; raises where this replica is killed meanwhile."""
        while not condition():
            self._can_go_on = condition
            self._stage.back.release()
            self._turn.acquire()
            if self.killed:
                raise Killed

    def take_turn(self) -> bool:
        """Let it run until it waits or ends; False where it cannot go on."""
        if self.over or not (self.killed or self._can_go_on()):
            return False
        self._turn.release()
        self._stage.back.acquire()
        return True


@dataclass
class Generation:
    """One world: who belongs to it, who has come, and what is being exchanged."""

    roster: tuple[int, ...]
    arrived: set[int] = field(default_factory=set)
    messages: list[dict[int, Any]] = field(default_factory=list)  # of each exchange, by rank
    broken: bool = False
    receivers: dict[int, set[int]] = field(default_factory=dict)  # of exchanges in which somebody was lost


class Stage:
    """All replicas of a run, living and dead; forms their worlds."""

    def __init__(self) -> None:
        self.back = threading.Semaphore(0)
        self.actors: dict[int, Actor] = {}
        self.generations: list[Generation] = []
        self.dismissed: set[int] = set()
        self.notice: Notice | None = None
        self.exchanged: Callable[[Generation, int], None] = lambda generation, number: None  # all messages are there

    def enter(self, count: int, body: Callable[[Actor], None]) -> list[int]:
        """New replicas; they wait until a world that has them is formed."""
        numbers = list(range(len(self.actors), len(self.actors) + count))
        for number in numbers:
            self.actors[number] = Actor(self, number, body)
        return numbers

    def announce(self, roster: Sequence[int]) -> None:
        """Another world is to be formed."""
        self.generations.append(Generation(tuple(sorted(roster))))

    @property
    def alive(self) -> list[int]:
        return [number for number, actor in self.actors.items() if not actor.over and not actor.killed]

    def kill(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.actors[number].killed = True

    def lose(self, generation: Generation, exchange: int, *, victims: set[int], receivers: set[int]) -> None:
        """Lose replicas in an exchange; of the others the ranks in ``receivers`` have all of it, the rest nothing."""
        self.kill(victims)
        generation.broken, generation.receivers[exchange] = True, receivers

    def play(self) -> None:
        """Until every replica is over; newcomers for whom the run ended before they could join are sent away."""
        while True:
            moved = [actor.take_turn() for actor in list(self.actors.values())]
            errors = [actor.error for actor in self.actors.values() if actor.error is not None]
            if errors:
                self.kill(self.alive)
                raise errors[0]
            if not any(moved):
                waiting = self.alive
                if not waiting:
                    return
                newest = self.generations[-1]
                assert all(n not in newest.roster or n in newest.arrived for n in waiting), "replicas wait for ever"
                assert any(self.actors[n].over for n in newest.roster), "replicas wait for ever"
                self.kill(waiting)


class StageCollective:
    """What replicas of one generation exchange; raises ``WorldError`` once one of them is lost."""

    group = control_group = None

    def __init__(self, stage: Stage, actor: Actor, generation: Generation) -> None:
        self._stage, self._actor, self._generation = stage, actor, generation
        self.rank, self.size = generation.roster.index(actor.number), len(generation.roster)
        self._exchanges = 0

    def _exchange(self, message: Any) -> list[Any]:
        generation, number = self._generation, self._exchanges
        self._exchanges += 1
        if generation.broken:
            raise WorldError("a replica was lost")
        if len(generation.messages) == number:
            generation.messages.append({})
        messages = generation.messages[number]
        messages[self.rank] = message
        if len(messages) == self.size:
            self._stage.exchanged(generation, number)
        self._actor.wait_until(lambda: len(messages) == self.size or generation.broken)
        if self._actor.killed:
            raise Killed
        received = len(messages) == self.size and (
            number not in generation.receivers or self.rank in generation.receivers[number]
        )
        if not received:
            raise WorldError("a replica was lost")
        return [messages[rank] for rank in range(self.size)]

    def gather_numbers(self, numbers: Sequence[float]) -> list[list[float]]:
        return [list(row) for row in self._exchange([float(number) for number in numbers])]

    def gather_text(self, text: str) -> list[str]:
        return self._exchange(text)

    def sum_tensors(self, tensors: Sequence[torch.Tensor]) -> None:
        sums = [torch.stack(parts).sum(0) for parts in zip(*self._exchange([t.clone() for t in tensors]), strict=True)]
        for tensor, total in zip(tensors, sums, strict=True):
            tensor.copy_(total)

    def broadcast_tensors(self, tensors: Sequence[torch.Tensor], *, source: int) -> None:
        for tensor, other in zip(tensors, self._exchange([t.clone() for t in tensors])[source], strict=True):
            tensor.copy_(other)

    def barrier(self) -> None:
        self._exchange(None)


class StageWorld:
    """A replica's view of the stage; what ``swell run`` gives a worker."""

    device, nodes, elastic, interim = torch.device("cpu"), 1, True, False

    def __init__(self, stage: Stage, actor: Actor) -> None:
        self._stage, self._actor = stage, actor
        self.generation = 0
        self._collective: StageCollective | None = None

    @property
    def joined(self) -> bool:
        return self._collective is not None

    @property
    def collective(self) -> StageCollective:
        assert self._collective is not None
        return self._collective

    def pending(self) -> bool:
        return self.generation < len(self._stage.generations)

    def reform(self) -> StageCollective:
        stage, number = self._stage, self._actor.number

        def formed() -> bool:
            newest = stage.generations[-1]
            if number not in newest.roster:
                return number in stage.dismissed
            newest.arrived.add(number)
            return number in stage.dismissed or newest.arrived == set(newest.roster)

        self._actor.wait_until(formed)
        newest = stage.generations[-1]
        if number in stage.dismissed:
            raise Dismissed
        self.generation = len(stage.generations)
        self._collective = StageCollective(stage, self._actor, newest)
        return self._collective

    def leave(self, source: str) -> bool:
        return False

    def mark(self, doing: str) -> None:
        """Nobody watches."""

    def trouble(self, name: str, text: str) -> None:
        """Nobody is told."""

    def allow(self, sizes: Any, *, why: str) -> None:
        """Every size is tried."""

    def notice(self) -> Notice | None:
        return self._stage.notice

    def close(self, *, alone: bool = False) -> None:
        """Nothing to leave."""


@dataclass
class Disk:
    """The newest checkpoint of a run."""

    newest: dict[str, Any] | None = None

    def write(self, state: dict[str, Any]) -> None:
        self.newest = copy.deepcopy(state)

    def read(self) -> dict[str, Any] | None:
        return copy.deepcopy(self.newest)
