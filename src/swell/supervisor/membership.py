"""Who belongs to an elastic run: every decision of the supervisor, as a state machine without clocks or processes.

Invariants, for every order of events (``tests/supervisor/test_membership.py``):

1. A generation never changes once it is announced; numbers rise by one.
2. Its members were alive, ready and not asked to leave when it was announced. Their number is an allowed one, unless
   the generation is interim.
3. Members of the previous generation keep their relative order and come first.
4. While a member of the newest generation is dead, dismissed or has given it up, another one will be announced as soon
   as enough workers are ready. Nothing else supersedes a generation that is still forming, so forming always ends.
5. The generation after a loss has survivors only, because they may be in the middle of something that newcomers know
   nothing about; newcomers join at the next step. Survivors too few (or too many) for a step get an interim generation
   until then.
6. Workers are restarted after faults at most ``max_restarts`` times (one incident may take several workers with it);
   resizes are not counted.
7. A process that cannot be started ends nobody: a resize is taken back, a replacement is tried again later.
8. Workers are only started where a machine has a free slot. The target follows the slots there are; too few of them are
   waited for, and neither that nor a lost machine is a fault.
9. A world of workers that have none of the run's state in memory is formed only where ``may_begin`` allows it for the
   machine of its first one, which reads the newest state from its disk.
10. While a worker that stays has the state of the run in memory, every generation has one that has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from swell.errors import ConfigError
from swell.supervisor.actions import Action, Announce, Ask, End, Log, Start
from swell.supervisor.generation import Generation
from swell.supervisor.next_generation import is_formed, is_whole, propose, ranked
from swell.supervisor.notice import EXIT_RESUME, Notice
from swell.supervisor.patience import Moment, Patience, overdue
from swell.supervisor.places import Places
from swell.supervisor.run_end import RunEnd
from swell.supervisor.script_error import refusal_of
from swell.supervisor.sizes import WorldSizes
from swell.supervisor.stall import Activity
from swell.supervisor.worker import Worker, describe_exit, failure_status

OnFailure = Literal["restart", "shrink", "stop"]
_MOST_FUTILE = 6
_UNNEEDED = "not needed any more"


class Membership:
    """The state of one run. Every method takes an event and the time, and returns the actions to carry out.

    Times, also those in notices, are seconds on one clock that never goes back. While ``held`` is true, events are only
    noted, and the next ``tick`` decides what follows from all of them: that takes the time of one event.
    """

    def __init__(
        self,
        sizes: WorldSizes,
        *,
        target: int,
        max_restarts: int = 3,
        on_failure: OnFailure = "restart",
        patience: Patience | None = None,
        places: Places | None = None,
    ) -> None:
        self.sizes = self._run_sizes = sizes  # what the job can be laid out on; what the user allows
        self.wanted, self._surplus_reason = sizes.require(target), _UNNEEDED
        self.places = Places() if places is None else places
        self.held = False
        self.may_begin: Callable[[int], bool] = lambda node: True  # whether a machine has the state to begin from
        self.max_restarts = max_restarts
        self.on_failure: OnFailure = on_failure
        self.patience = patience or Patience()
        self.workers: dict[int, Worker] = {}
        self.generation = Generation(number=0, members=())
        self.restarts = 0
        self.end = RunEnd()
        self.over = False
        self._announced_at = self._ticked_at = -math.inf
        self._last_name = 0
        self._early_error = ""  # of the last worker that its script's error ended before its first step
        self._repeats = False  # whether the last worker ended by the error of an earlier incident
        self._incident = 0  # workers named up to here belong to the last incident
        self._handing_over: list[Worker] = []  # must leave, but nobody who stays has the state of the run yet
        self._futile = 0  # generations in a row that could not be formed, though nobody died
        self._recent: list[Generation] = []  # those that a worker may still be in
        self._unformed: set[int] = set()  # members that have not formed the newest generation yet
        self.refusal = ""  # why the last resize was taken back
        self._grown_from: int | None = None  # the number of workers before a resize that is not complete yet

    @property
    def target(self) -> int:
        """The number of workers to reach: what is wanted, as far as there is room."""
        return self.sizes.nearest_below(min(self.wanted, self.places.room))

    def begin(self, now: float) -> list[Action]:
        """Start the first workers."""
        self._ticked_at = now
        return self._decide(now)

    def ready(self, member: int, now: float) -> list[Action]:
        """A worker has built everything and waits to join."""
        worker = _hear(self.workers, member, now)
        if worker is not None and worker.phase == "starting":
            worker.phase, worker.ready_at = "ready", now
            if worker.node in self.places.nodes:
                self.places.nodes[worker.node].pause.succeeded()
        return self._decide(now)

    def joined(self, member: int, number: int, now: float) -> list[Action]:
        """A worker has begun to form a generation."""
        worker = _hear(self.workers, member, now)
        if worker is not None:
            worker.joined = max(worker.joined, number)
        return []

    def formed(self, member: int, number: int, now: float) -> list[Action]:
        """A worker has formed a generation and trains in it."""
        worker = _hear(self.workers, member, now)
        if worker is not None:
            worker.joined = worker.formed = max(worker.formed, number)
            worker.moved_at = now
        if number == self.generation.number and member in self._unformed:
            self._unformed.discard(member)
            if self._unformed or not is_formed(self.workers, self.generation):
                return []
            self._incident = self._futile = 0
            for each in self.generation.members:
                self.workers[each].settled = number
            self.end.carry_on()
            self._grown_from = self._grown_from if len(self.generation.members) < self.target else None
            return [Log(f"generation {number}: {len(self.generation.members)} workers"), *self._decide(now)]
        return []

    def left(self, member: int, number: int, now: float, *, why: str = "") -> list[Action]:
        """A worker's group of that generation is gone: a peer was lost, or (with ``why``) it could not be formed."""
        worker = _hear(self.workers, member, now)
        if worker is not None and number > worker.left:
            worker.left, worker.left_at = number, now
        logs = [Log(f"worker {member} could not form generation {number}: {why}")] if why else []
        return [*logs, *self._decide(now)]

    def beat(self, member: int, progress: int, now: float, activity: Activity | None = None) -> list[Action]:
        """A sign of life, with the worker's count of signs of progress and what its main thread does."""
        worker = _hear(self.workers, member, now)
        if worker is None:
            return []
        if progress != worker.progress:
            worker.progress, worker.moved_at = progress, now
        if activity is not None:
            worker.activity = activity
            worker.moved_at = max(worker.moved_at, now - activity.still_s)
        return []

    def not_started(self, member: int, why: str, now: float) -> list[Action]:
        """A process could not be started: take a resize back, or try again later and go on with those there are.

        Workers that are too many then are sent home by the next tick, because their processes may not exist yet.
        """
        worker = self.workers.pop(member, None)
        node = None if worker is None else self.places.nodes.get(worker.node)
        if worker is None or node is None:
            return self._decide(now) if self.end.begun else []
        self.places.free(worker.node, worker.slot)
        present = [worker for worker in self.workers.values() if worker.phase != "dismissed"]
        if self.end.begun or len(present) >= self.target:
            return self._decide(now) if self.end.begun else []
        alone = len(self.places.nodes) == 1
        if not self.generation.number and not self.workers and alone:
            return self.abort(f"no worker can be started ({why})", 2, now)
        for_s, start_s = node.pause.failed(now), self.patience.start_s
        if not self.places.endless:
            return [Log(f"no worker can be started on {node.name} ({why}): it is tried again, and the others go on")]
        if self._grown_from is not None:
            wanted, self.wanted, self._grown_from = self.target, self._grown_from, None
            self.refusal = f"a worker could not be started ({why})"
            return [Log(f"{self.refusal}: the run stays at {self.target} workers instead of {wanted}")]
        if for_s > start_s and self.sizes.floor(len(present)) is None:
            text = f"for {start_s:g} s no worker could be started ({why})"
            return self.stop(text, now, code=1) if present else self.abort(text, 1, now)
        return [Log(f"a worker could not be started ({why}): it is tried again, and the others go on")]

    def done(self, member: int, now: float, *, alone: bool = False) -> list[Action]:
        """A worker has come to the end of its training, or of its part in it, and is about to exit.

        ``alone`` says that it has left the loop while others were still in it, so they cannot go on.
        """
        worker = _hear(self.workers, member, now)
        if worker is None:
            return []
        worker.leaving, worker.deadline = True, min(worker.deadline, now + self.patience.grace_s)
        worker.phase = "done" if worker.phase == "ready" else worker.phase
        if alone and worker.phase == "done" and not self.end.begun:
            return [*self.end.finish_alone(member), *self._decide(now)]
        return []

    def restrict(self, sizes: Iterable[int], now: float, *, why: str) -> list[Action]:
        """The job can be laid out on these numbers of workers only, because of the bounds in ``why``."""
        before = self.target
        try:
            self.sizes = self._run_sizes.only(sizes)
        except ConfigError as error:
            return self.abort(f"{error} The job was made with {why}.", 2, now)
        if before not in self.sizes.allowed:
            self._surplus_reason = f"the job's batch ({why}) can be laid out on {self.sizes} workers only, not {before}"
        if self.places.endless:
            self.wanted = self.sizes.nearest_below(before)
        return self._decide(now)

    def resize(self, workers: int, now: float, *, kill: bool = False) -> list[Action]:
        """Change the number of workers. With ``kill``, surplus ones get no notice, as on a spot market."""
        if self.end.begun:
            raise ConfigError(
                f"the run is coming to its end; expected a running one to resize to {workers} workers. Bring it back "
                f"with `swell resume`, then resize it."
            )
        if workers not in self.sizes.allowed and workers in self._run_sizes.allowed:
            raise ConfigError(
                f"workers is {workers}; expected {self.sizes}, on which the job's batch can be laid out. Ask for one "
                f"of those, or start the job with a larger batch or a smaller lower bound on micro-batches."
            )
        before, self.wanted, self._surplus_reason = self.target, self.sizes.require(workers), _UNNEEDED
        if self.target > before:
            self._grown_from = before if self._grown_from is None else min(before, self._grown_from)
            for node in self.places.nodes.values():
                node.pause.at = now
        else:
            self._grown_from = None
        actions: list[Action] = []
        if kill:
            for worker in ranked(self.workers, self.generation)[self.target :]:
                worker.phase = "dismissed"
                actions += worker.kill("taken away without notice")
        return [*actions, *self._decide(now)]

    def fit(self, now: float) -> list[Action]:
        """The places have changed: workers of lost machines are gone, those of leaving ones go, the target follows."""
        nodes, actions = self.places.nodes, []
        lost = [worker for worker in self.workers.values() if worker.node not in nodes]
        for worker in lost:
            if self.end.begun:
                actions += self.exited(worker.member, -9, now)
            else:
                del self.workers[worker.member]
        leaving = [node for node in nodes.values() if node.leaving]
        used = {worker.node for worker in self.workers.values()} if leaving else set()
        if self.sizes.floor(self.places.room) is None and any(node.number in used for node in leaving):
            actions += self.stop(f"{leaving[-1].leaving} to {leaving[-1].name}, and what is left is too little", now)
        return [*actions, *self._decide(now)]

    def asked_to_leave(self, member: int, source: str, now: float) -> list[Action]:
        """A worker got notice from elsewhere (a signal): the others go on without it if they are enough.

        Where the others are newcomers that have formed no world yet, it leaves after it has formed one with them:
        nobody else has the steps since the last save.
        """
        worker = self.workers.get(member)
        if worker is None or worker.phase != "ready" or self.end.stopping or self.end.finishing:
            return []
        others = [other for other in ranked(self.workers, self.generation) if other is not worker]
        rest = self.sizes.floor(len(others))
        if rest is None:
            return self.stop(f"{source} to worker {member}", now)
        if worker.formed and not any(other.settled >= max(worker.settled, 1) for other in others):
            worker.asked_by = source
            return self._decide(now)
        if not self.places.withdraw(worker.node, worker.slot):
            self.wanted = min(self.target, rest)
        notice = worker.dismiss(now, grace_s=self.patience.grace_s)
        return [Log(f"worker {member} was asked to leave ({source})"), *notice, *self._decide(now)]

    def stop(self, source: str, now: float, *, grace_s: float | None = None, code: int = EXIT_RESUME) -> list[Action]:
        """Ask the whole run to save and exit."""
        if self.end.begun:
            return []
        deadline = now + (self.patience.grace_s if grace_s is None else grace_s)
        notice = Notice(source=source, time=now, deadline=deadline)
        self.end.stop(notice, code)
        actions: list[Action] = [Log(f"stopping: {source}")]
        for worker in self.workers.values():
            worker.deadline = min(worker.deadline, deadline)
            if worker.formed or worker.member in self.generation.members:
                actions.append(Ask(worker.member, notice))
        return [*actions, *self._decide(now)]

    def abort(self, reason: str, code: int, now: float) -> list[Action]:
        """End everything at once."""
        self.end.fail(code)
        actions: list[Action] = [Log(reason)]
        for worker in self.workers.values():
            actions += worker.kill("the run has failed")
        return [*actions, *self._decide(now)]

    def exited(self, member: int, code: int, now: float, *, error: str = "") -> list[Action]:
        """A worker process is gone; ``code`` below 0 means that signal, ``error`` is the traceback that ended it."""
        worker = self.workers.pop(member, None)
        if worker is None:
            return []
        self.places.free(worker.node, worker.slot)
        actions: list[Action] = []
        end, newest = self.end, self.generation
        end.saved |= code == EXIT_RESUME
        if worker.phase == "dismissed":
            actions.append(Log(f"worker {member} has left"))
        elif code == 0 and (worker.phase == "done" or member in newest.members or not newest.number):
            end.finish(member)
        elif code == EXIT_RESUME and not end.stopping:
            actions += self.stop(f"worker {member} stopped on notice", now)
        elif end.stopping or end.finishing:
            actions += end.follow(worker, code)
        elif end.failure is None:
            actions += self._fault(worker, code, now, error)
        return [*actions, *self._decide(now)]

    def tick(self, now: float) -> list[Action]:
        """Time has passed: look for workers that are late, silent or stuck."""
        if now - self._ticked_at > self.patience.hang_s / 2:  # the supervisor slept: messages may wait to be read
            for worker in self.workers.values():
                worker.heard_at = max(worker.heard_at, now)
                worker.moved_at = min(now, worker.moved_at + now - self._ticked_at)
        self._ticked_at = now
        around = Moment.of(self.workers, self.generation, announced_at=self._announced_at, stopping=self.end.stopping)
        actions: list[Action] = []
        for worker in self.workers.values():
            reason = overdue(worker, around, patience=self.patience, now=now)
            if reason:
                actions += worker.kill(reason)
        for worker in [worker for worker in self.workers.values() if worker.asked_by]:
            actions += self.asked_to_leave(worker.member, worker.asked_by, now)
        return [*actions, *self._decide(now)]

    def _fault(self, worker: Worker, code: int, now: float, error: str) -> list[Action]:
        """A worker was lost: it is replaced, the others go on without it, or the run ends."""
        logs: list[Action] = [Log(f"worker {worker.member} {describe_exit(code)}")]
        early = error if worker.activity.steps == 0 else ""  # before its first step
        refusal = refusal_of(early)
        if refusal is not None:
            return [*logs, *self.abort(refusal, 2, now)]
        again = worker.member > self._incident or self._repeats
        repeated = self._repeats = early != "" and early == self._early_error and again
        self._early_error = early or self._early_error
        if worker.member > self._incident:
            self.restarts += self.on_failure == "restart"
            self._incident = self._last_name
        if self.on_failure == "stop":
            source = f"worker {worker.member} {describe_exit(code)}"
            return [*logs, *self.stop(source, now, code=failure_status(code))]
        if self.on_failure == "restart" and self.restarts <= self.max_restarts and not repeated:
            return logs
        last = early.rpartition("\n")[2]
        alive = sum(other.phase in ("starting", "ready") for other in self.workers.values())
        rest = self.sizes.floor(alive)
        if rest is None:
            why = "no worker may be replaced" if self.on_failure == "shrink" else "the restart budget is spent"
            if repeated:
                why = f"the script's error came again before a worker's first step: {last}"
            return [*logs, *self.abort(f"{alive} workers are too few and {why}", failure_status(code), now)]
        if not self.places.withdraw(worker.node, worker.slot):
            self.wanted = min(self.target, rest)
        logs += [Log(f"the same error came twice before a worker's first step: {last}")] * repeated
        return [*logs, Log(f"going on with {self.target} workers")]

    def _decide(self, now: float) -> list[Action]:
        """What follows from the present state, whatever the event was."""
        end, newest = self.end, self.generation
        if self.over or self.held:
            return []
        if not self.workers and end.begun:
            self.over = True
            return [End(end.status())]
        if end.failure is not None:
            return []
        workers, deadline = list(self.workers.values()), self._ticked_at + self.patience.grace_s
        actions: list[Action] = []
        if end.finishing or (end.stopping and end.saved):  # the members are on their way out, each at its own pace
            waiting = [w for w in workers if w.left == newest.number or w.formed < w.joined]  # for peers that are gone
            idle = [w for w in workers if w.member not in newest.members or w in waiting]
            actions += end.leave_behind(waiting, newest, self.workers) if end.finishing else []
            for worker in idle:
                actions += worker.release("the run has ended", deadline=deadline)
            return actions
        if end.stopping:
            # Only those that never joined: a spare that did may be all that is left when the members are lost.
            for worker in workers:
                if worker.member not in newest.members and not worker.formed:
                    actions += worker.release("the run is stopping", deadline=deadline)
        else:
            actions += self._reach_target(now)
        return [*actions, *self._announce(now)]

    def _reach_target(self, now: float) -> list[Action]:
        """Start the workers that are missing; give notice to those that are too many or whose machine is leaving."""
        actions: list[Action] = []
        nodes, target = self.places.nodes, self.target
        placed = [worker for worker in self.workers.values() if worker.phase != "dismissed"]
        present = [worker for worker in placed if not nodes[worker.node].leaving]
        while len(present) < target and (place := self.places.take(now=now)) is not None:
            self._last_name += 1
            facts = {"node": place[0], "slot": place[1], "started_at": now, "heard_at": now, "moved_at": now}
            worker = Worker(member=self._last_name, **facts)
            self.workers[worker.member] = worker
            present.append(worker)
            actions.append(Start(worker.member, worker.slot, worker.node))
        surplus = [worker for worker in placed if nodes[worker.node].leaving]
        # One that failed says so before it exits, and one that is being killed has not ended yet.
        staying = [worker for worker in present if worker.phase != "done" and not worker.killed]
        if len(staying) > target:
            starting = [worker for worker in reversed(present) if worker.phase == "starting"]
            ready = [worker for worker in ranked(self.workers, self.generation) if not nodes[worker.node].leaving]
            surplus += [*starting, *reversed(ready)][: len(staying) - target]
        members, grace_s = set(self.generation.members) if surplus else set(), self.patience.grace_s
        may_leave = is_formed(self.workers, self.generation) or not is_whole(self.workers, self.generation)
        holders = _last_holders([worker for worker in surplus if worker.member in members], staying, surplus)
        together = self.sizes.floor(target + len(holders)) or target  # a world of more would leave the heirs out
        self._handing_over = holders[: max(1, together - target)]
        for worker in surplus:
            if worker in self._handing_over:
                continue
            if worker.member not in members:
                reason = nodes[worker.node].leaving or self._surplus_reason
                actions += worker.release(reason, deadline=self._ticked_at + grace_s)
            elif may_leave and worker.phase == "ready":
                actions += worker.dismiss(now, grace_s=grace_s)
        return actions

    def _announce(self, now: float) -> list[Action]:
        """Announce the next generation, if it is due."""
        proposal = propose(
            self.workers,
            self.generation,
            sizes=self.sizes,
            target=self.target + (0 if self.end.stopping else len(self._handing_over)),
            stopping=self.end.stopping is not None,
            settle_s=self.patience.settle_s * 2.0**self._futile,  # a network may need a moment to come back
            linger_s=self.patience.linger_s,
            now=now,
        )
        if proposal is None:
            return []
        first = self.workers[proposal.members[0]]  # it reads the newest state, where no member has one in memory
        stateless = not any(self.workers[member].activity.steps for member in proposal.members)
        if stateless and not self.may_begin(first.node):
            return []
        self._futile += proposal.futile
        if self._futile > _MOST_FUTILE:
            text = f"the workers live, but {_MOST_FUTILE} times they could not connect to one another: see their logs"
            return self.abort(text, 1, now)
        workers = sorted(self.workers.values(), key=lambda worker: worker.member)
        alive = tuple(worker.member for worker in workers if not worker.killed)
        oldest, living = min((w.formed for w in workers if w.formed), default=math.inf), set(alive)
        self._recent = [each for each in self._recent if each.number >= oldest]
        self.generation = Generation(
            number=self.generation.number + 1,
            members=proposal.members,
            dismissed=tuple(worker.member for worker in workers if worker.phase == "dismissed"),
            alive=alive,
            broken=tuple(each.number for each in self._recent if not living.issuperset(each.members)),
            nodes=max(1, self.places.count_hosts(self.workers[member].node for member in proposal.members)),
            interim=proposal.interim,
        )
        self._recent.append(self.generation)
        self._unformed = set(proposal.members)
        self._announced_at = now
        return [Announce(self.generation)]


def _last_holders(leaving: Sequence[Worker], staying: Sequence[Worker], surplus: Sequence[Worker]) -> list[Worker]:
    """Members that must leave and are the last to have the newest state; those who stay receive it from them first."""
    heirs = [worker for worker in staying if worker not in surplus]
    newest = max((worker.settled for worker in heirs), default=0)
    # One that has begun to form a world may have formed it by now.
    return [worker for worker in leaving if heirs and worker.phase == "ready" and worker.joined > newest]


def _hear(workers: Mapping[int, Worker], member: int, now: float) -> Worker | None:
    worker = workers.get(member)
    if worker is not None:
        worker.heard_at = now
    return worker
