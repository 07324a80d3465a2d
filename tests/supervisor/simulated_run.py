"""A run without processes or clocks: simulated workers that keep to the protocol, and everything checked on the way."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from swell.supervisor.actions import Action, Announce, Ask, End, Kill, Log, Release, Start
from swell.supervisor.generation import Generation
from swell.supervisor.membership import Membership
from swell.supervisor.notice import EXIT_RESUME, Notice


@dataclass
class SimulatedWorker:
    """What a worker process does between two words to the supervisor, one move at a time."""

    member: int
    state: str = "building"  # building, waiting, forming, training
    number: int = 0  # the generation it is in or forms
    passed: int = 0
    formed: int = 0  # the newest generation it has formed
    holds: bool = False  # whether it has the state of the run in memory, which members share once all have formed one
    notice: Notice | None = None
    only_holder: bool = False  # whether nobody else had the state of the run when it got notice to leave
    released: bool = False
    hung: bool = False
    inbox: list[Generation] = field(default_factory=list)

    @property
    def leaving(self) -> bool:
        return self.notice is not None and self.notice.leave


class SimulatedRun:
    """Carries out what the membership decides, as the supervisor and its workers would."""

    def __init__(self, members: Membership) -> None:
        self.members = members
        self.now = 0.0
        self.workers: dict[int, SimulatedWorker] = {}
        self.generations: list[Generation] = []
        self.joined: dict[int, set[int]] = {}
        self.ended: int | None = None
        self.started = self.attempts = 0
        self.unstarted: set[int] = set()  # names of workers whose processes could not be started
        self.startable = True  # whether there is room for another process
        self.do(members.begin(self.now))

    def do(self, actions: list[Action]) -> None:
        killed = []
        for action in actions:
            assert self.ended is None, "the run acted after its end"
            if isinstance(action, Start) and not self.startable:
                self.attempts += 1
                self.unstarted.add(action.member)
                self.do(self.members.not_started(action.member, "no room", self.now))
            elif isinstance(action, Start):
                assert action.member not in self.workers
                others = [worker for worker in self.members.workers.values() if worker.member != action.member]
                taken = {(worker.node, worker.slot) for worker in others}
                assert (action.node, action.slot) not in taken, "two workers on one place"
                self.workers[action.member] = SimulatedWorker(action.member)
                self.started += 1
            elif isinstance(action, Announce):
                self.check(action.generation)
                self.generations.append(action.generation)
                for worker in self.workers.values():
                    worker.inbox.append(action.generation)
            elif isinstance(action, Ask):
                worker = self.workers[action.member]
                worker.notice = action.notice
                holders = [other for other in self.workers.values() if other.holds]
                worker.only_holder = worker in holders and all(other.leaving for other in holders)
            elif isinstance(action, Release):
                self.workers[action.member].released = True
            elif isinstance(action, Kill):
                killed.append(action.member)
            elif isinstance(action, End):
                assert not self.workers, "the run ended before its workers"
                self.ended = action.code
            else:
                assert isinstance(action, Log)
        for member in killed:  # an end is seen some time after the kill
            self.exit(member, -9)

    def check(self, generation: Generation) -> None:
        before = self.generations[-1] if self.generations else Generation(number=0, members=())
        assert generation.number == before.number + 1
        assert len(set(generation.members)) == len(generation.members) > 0
        assert set(generation.members) <= set(generation.alive) <= set(self.workers) | self.unstarted
        if not self.members.end.stopping:
            assert (len(generation.members) in self.members.sizes.allowed) != generation.interim
            nodes, known = self.members.places.nodes, self.members.workers
            staying = [known[m] for m in generation.members if not nodes[known[m].node].leaving]
            settled = [worker for worker in staying if worker.joined <= worker.formed]  # others may have formed a world
            assert len(settled) <= self.members.target, "others are there only to hand the state over"
        for member in generation.members:
            worker = self.workers[member]  # alive
            assert worker.state != "building"
            assert not worker.released
            assert not worker.leaving
        stood = [self.workers[m].formed for m in before.members if m in self.workers]
        if before.number and max(stood, default=0) > 0 and any(m not in self.workers for m in before.members):
            present = [self.workers[member] for member in generation.members]
            late = [worker for worker in present if worker.formed < max(stood) and not worker.holds]
            assert not late, "after a loss nobody is new"
        if any(worker.only_holder and not worker.hung for worker in self.workers.values()):
            assert any(self.workers[m].holds for m in generation.members), "who leaves on notice takes the state along"
        holders = [w.member for w in self.workers.values() if w.holds and not (w.hung or w.leaving or w.released)]
        assert not holders or set(holders) & set(generation.members), "nobody begins anew while others have the state"
        stayed = [member for member in before.members if member in generation.members]
        assert list(generation.members[: len(stayed)]) == stayed, "survivors keep their order and come first"

    def exit(self, member: int, code: int, *, error: str = "") -> None:
        if self.workers.pop(member, None) is not None:
            self.do(self.members.exited(member, code, self.now, error=error))

    def tick(self, seconds: float) -> None:
        self.now += seconds
        for worker in list(self.workers.values()):
            if not worker.hung and worker.state != "building":
                self.do(self.members.beat(worker.member, int(self.now), self.now))
        if self.ended is None:
            self.do(self.members.tick(self.now))

    def move(self, member: int) -> bool:
        """Let one worker make its next move; False where it has none to make."""
        worker = self.workers.get(member)
        if worker is None or worker.hung:
            return False
        if worker.state == "building":
            worker.state = "waiting"
            self.do(self.members.ready(member, self.now))
            return True
        if worker.state == "training":
            return self._train(worker)
        newest = worker.inbox[-1] if worker.inbox else None
        if worker.released:
            self.exit(member, 0)
            return True
        if worker.state == "forming":
            if newest is not None and newest.number > worker.number:  # superseded: give up
                worker.state, worker.passed = "waiting", worker.number
                return True
            generation = self.generations[worker.number - 1]
            if self.joined[worker.number] >= set(generation.members):
                worker.state, worker.formed = "training", worker.number
                peers = [self.workers[m] for m in generation.members if m in self.workers]
                if len(peers) == len(generation.members) and all(peer.formed == worker.number for peer in peers):
                    for peer in peers:
                        peer.holds = True
                self.do(self.members.formed(member, worker.number, self.now))
                return True
            return False
        if newest is None or newest.number <= worker.passed:
            return False
        if member in newest.members:
            worker.state, worker.number = "forming", newest.number
            self.joined.setdefault(newest.number, set()).add(member)
            self.do(self.members.joined(member, newest.number, self.now))
            return True
        if member in newest.dismissed:
            self.exit(member, 0)
            return True
        return False

    def cut(self, member: int) -> None:
        """The network fails while a worker forms a world, and it gives up."""
        worker = self.workers.get(member)
        if worker is not None and not worker.hung and worker.state == "forming":
            worker.state, worker.passed = "waiting", worker.number
            self.do(self.members.left(member, worker.number, self.now, why="no route"))

    def _train(self, worker: SimulatedWorker) -> bool:
        """Notice what there is to notice at the end of a step."""
        peers = self.generations[worker.number - 1].members
        gone = any(peer not in self.workers or self.workers[peer].number != worker.number for peer in peers)
        pending = any(self.workers[p].inbox[-1].number > worker.number for p in peers if p in self.workers)
        stop = worker.notice is not None and not worker.leaving
        if gone or pending or self.generations[worker.number - 1].interim:
            worker.state, worker.passed = "waiting", worker.number
            self.do(self.members.left(worker.member, worker.number, self.now))
            return True
        if stop:  # the vote: all of them stop after the same step
            for peer in peers:
                self.exit(peer, EXIT_RESUME)
            return True
        return False

    def finish(self) -> None:
        """All members of the newest group come to the end of their training, if they are all in it."""
        if not self.generations:
            return
        members = self.generations[-1].members
        if all(m in self.workers and self.workers[m].state == "training" for m in members):
            started = self.started
            for member in members:
                self.do(self.members.done(member, self.now))
                self.tick(0.1)
            assert self.started == started, "nobody is replaced at the end"
            for member in members:
                self.exit(member, 0)

    def settle(self) -> None:
        """Let everybody move until nothing has happened for longer than any patience lasts."""
        quiet = 0
        for _ in range(1000):
            before = (len(self.generations), sorted(self.workers))
            moved = [self.move(member) for member in list(self.workers)]
            if self.ended is None:
                self.tick(4.0)
            if self.ended is not None:
                return
            quiet = 0 if any(moved) or (len(self.generations), sorted(self.workers)) != before else quiet + 1
            if quiet > 20:
                return
        raise AssertionError(f"the run does not come to rest: {self.picture()}")

    def training(self) -> list[int]:
        """The members that train, if the newest generation is the one they are in."""
        newest = self.generations[-1].number if self.generations else math.nan
        return [w.member for w in self.workers.values() if w.state == "training" and w.number == newest]

    def picture(self) -> dict[str, Any]:
        return {"now": self.now, "workers": self.workers, "generations": self.generations[-3:], "code": self.ended}
