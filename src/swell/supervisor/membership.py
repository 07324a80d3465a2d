"""Who belongs to an elastic run: every decision of the supervisor, as a state machine without clocks or processes.

Invariants, held for every order of events (``tests/supervisor/test_membership.py``):

1. A generation never changes once announced; numbers rise by one.
2. Its members were alive, ready and not asked to go when it was announced, and their number is an allowed one, unless
   it is an interim one.
3. Members that were in the generation before keep their relative order and come first.
4. While a member of the newest generation is dead, dismissed or has given it up, another will be announced as soon as
   enough workers are ready; nothing else supersedes a generation that is still forming, so forming comes to an end.
5. What follows a loss has survivors only, for they may be in the middle of something that newcomers know nothing of;
   newcomers join at the next step. Survivors too few (or too many) for a step get an interim generation until then.
6. Workers are started for faults at most ``max_restarts`` times (one incident may take several workers with it);
   resizes are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

from swell.errors import ConfigError
from swell.supervisor.actions import Action, Announce, Ask, End, Kill, Log, Release, Start
from swell.supervisor.finish import Finish
from swell.supervisor.generation import Generation
from swell.supervisor.notice import EXIT_RESUME, Notice
from swell.supervisor.roster import Patience, Worker, ended, status
from swell.supervisor.sizes import WorldSizes

OnFailure = Literal["restart", "shrink", "stop"]
_MOST_FUTILE = 6
_UNNEEDED = "not needed any more"


class Membership:
    """The state of one run. Every method takes an event and the time, and returns what is to be done.

    Times, also those in notices, are seconds on one clock that never goes back.
    """

    def __init__(
        self,
        sizes: WorldSizes,
        *,
        target: int,
        max_restarts: int = 3,
        on_failure: OnFailure = "restart",
        patience: Patience | None = None,
    ) -> None:
        self.sizes = self._given = sizes
        self.target, self._surplus = sizes.require(target), _UNNEEDED
        self.max_restarts = max_restarts
        self.on_failure: OnFailure = on_failure
        self.patience = patience or Patience()
        self.workers: dict[int, Worker] = {}
        self.generation = Generation(number=0, members=())
        self.announced_at = -math.inf
        self.restarts = 0
        self.stopping: Notice | None = None
        self.finishing = False
        self.over = False
        self._code: int | None = None  # of a failure; the run is being ended
        self._stop_code = EXIT_RESUME
        self._finish = Finish()
        self._saved = False  # whether a worker said so by its exit code
        self._unsaved: list[int] = []  # how those ended that failed or were killed on their way out
        self._names = 0
        self._incident = 0  # workers named up to here belong to the last incident
        self._futile = 0  # generations in a row that could not be formed, though nobody died
        self._looked = -math.inf

    def begin(self, now: float) -> list[Action]:
        """Start the first workers."""
        self._looked = now
        return self._decide(now)

    def ready(self, member: int, now: float) -> list[Action]:
        """A worker has built everything and waits to join."""
        worker = self._hear(member, now)
        if worker is not None and worker.phase == "starting":
            worker.phase, worker.ready_at = "ready", now
        return self._decide(now)

    def joined(self, member: int, number: int, now: float) -> list[Action]:
        """A worker has begun to form a generation."""
        worker = self._hear(member, now)
        if worker is not None:
            worker.joined = max(worker.joined, number)
        return []

    def formed(self, member: int, number: int, now: float) -> list[Action]:
        """A worker has formed a generation and goes on training."""
        worker = self._hear(member, now)
        if worker is not None:
            worker.joined = worker.formed = max(worker.formed, number)
            worker.moved = now
        if number == self.generation.number and self._formed():
            self._incident = self._futile = 0
            return [Log(f"generation {number}: {len(self.generation.members)} workers"), *self._decide(now)]
        return []

    def left(self, member: int, number: int, now: float, *, why: str = "") -> list[Action]:
        """A worker's group of that generation is gone: a peer was lost, or (with ``why``) it could not be formed."""
        worker = self._hear(member, now)
        if worker is not None and number > worker.left:
            worker.left, worker.left_at = number, now
        said = [Log(f"worker {member} could not form generation {number}: {why}")] if why else []
        return [*said, *self._decide(now)]

    def beat(self, member: int, progress: int, now: float) -> list[Action]:
        """A sign of life, and how far the worker has come."""
        worker = self._hear(member, now)
        if worker is not None and progress != worker.progress:
            worker.progress, worker.moved = progress, now
        return []

    def done(self, member: int, now: float) -> list[Action]:
        """A worker has come to the end of its training, or of its part in it, and is about to exit."""
        worker = self._hear(member, now)
        if worker is not None:
            worker.leaving, worker.deadline = True, min(worker.deadline, now + self.patience.grace_s)
            worker.phase = "done" if worker.phase == "ready" else worker.phase
        return []

    def restrict(self, sizes: Iterable[int], now: float, *, why: str) -> list[Action]:
        """The job says which numbers of workers it can be laid out on, and by which of its bounds."""
        try:
            self.sizes = self._given.only(sizes)
        except ConfigError as error:
            return [Log(f"{error} The job was made with {why}."), *self._fail(2, now)]
        if self.target not in self.sizes.allowed:
            self._surplus = f"the job's batch ({why}) can be laid out on {self.sizes} workers only, not {self.target}"
        self.target = self.sizes.nearest_below(self.target)
        return self._decide(now)

    def resize(self, workers: int, now: float, *, kill: bool = False) -> list[Action]:
        """Somebody wants another number of workers. With ``kill`` those too many get no notice, as on a spot market."""
        if self.stopping or self.finishing or self._code is not None:
            raise ConfigError(f"cannot resize to {workers} workers: the run is coming to its end.")
        if workers not in self.sizes.allowed and workers in self._given.allowed:
            raise ConfigError(
                f"{workers} workers were asked for, but the job's batch can be laid out on {self.sizes} only. Ask for "
                f"one of those, or start it with a larger batch or a smaller lower bound on micro-batches."
            )
        self.target, self._surplus = self.sizes.require(workers), _UNNEEDED
        actions: list[Action] = []
        if kill:
            surplus = self._ranked()[self.target :]
            for worker in surplus:
                worker.phase = "dismissed"
                actions += self._kill(worker, "taken away without notice")
        return [*actions, *self._decide(now)]

    def asked_to_leave(self, member: int, source: str, now: float) -> list[Action]:
        """A worker was given notice from elsewhere (a signal): the others go on without it if they may."""
        worker = self.workers.get(member)
        if worker is None or worker.phase != "ready" or self.stopping or self.finishing:
            return []
        rest = self.sizes.floor(len(self._ranked()) - 1)
        if rest is None:
            return self.stop(f"{source} to worker {member}", now)
        self.target = min(self.target, rest)
        return [Log(f"worker {member} was asked to go ({source})"), *self._dismiss(worker, now), *self._decide(now)]

    def stop(self, source: str, now: float, *, grace_s: float | None = None, code: int = EXIT_RESUME) -> list[Action]:
        """Ask the whole run to save and exit."""
        if self.stopping or self.finishing or self._code is not None:
            return []
        deadline = now + (self.patience.grace_s if grace_s is None else grace_s)
        self.stopping = Notice(source=source, time=now, deadline=deadline)
        self._stop_code = code
        actions: list[Action] = [Log(f"stopping: {source}")]
        for worker in self.workers.values():
            worker.deadline = min(worker.deadline, deadline)
            if worker.formed or worker.member in self.generation.members:
                actions.append(Ask(worker.member, self.stopping))
        return [*actions, *self._decide(now)]

    def abort(self, reason: str, code: int, now: float) -> list[Action]:
        """End everything at once."""
        return [Log(reason), *self._fail(code, now)]

    def exited(self, member: int, code: int, now: float) -> list[Action]:
        """A worker process is gone; ``code`` below 0 means that signal."""
        worker = self.workers.pop(member, None)
        if worker is None:
            return []
        actions: list[Action] = []
        self._saved |= code == EXIT_RESUME
        if worker.phase == "dismissed":
            actions.append(Log(f"worker {member} has left"))
        elif code == 0 and (worker.phase == "done" or member in self.generation.members or not self.generation.number):
            self.finishing = self._finish.well(member)
        elif code == EXIT_RESUME and not self.stopping:
            actions += self.stop(f"worker {member} stopped on notice", now)
        elif self.stopping or self.finishing:
            if code not in (0, EXIT_RESUME):
                actions.append(Log(f"worker {member} {ended(code)} on its way out"))
                if self.stopping and worker.formed:
                    self._unsaved.append(code)
            actions += self._finish.followed(worker, code) if self.finishing else []
        elif self._code is None:
            actions += self._fault(worker, code, now)
        return [*actions, *self._decide(now)]

    def tick(self, now: float) -> list[Action]:
        """Time has passed: look for workers that are late, silent or stuck."""
        if now - self._looked > self.patience.hang_s / 2:  # it was we who slept: their words may be on the way
            for worker in self.workers.values():
                worker.heard = max(worker.heard, now)
        self._looked = now
        actions: list[Action] = []
        for worker in self.workers.values():
            reason = self._overdue(worker, now)
            if reason:
                actions += self._kill(worker, reason)
        return [*actions, *self._decide(now)]

    def _hear(self, member: int, now: float) -> Worker | None:
        worker = self.workers.get(member)
        if worker is not None:
            worker.heard = now
        return worker

    def _overdue(self, worker: Worker, now: float) -> str:
        patience, newest = self.patience, self.generation
        if now > worker.deadline:
            return "did not go before its deadline"
        if worker.leaving:
            return ""
        if worker.phase == "starting":
            late = now - worker.started > patience.start_s
            return f"was not ready within {patience.start_s:g} s" if late else ""
        if now - worker.heard > patience.hang_s:
            return f"gave no sign of life for {patience.hang_s:g} s"
        if worker.member in newest.members and worker.phase == "ready":
            since = max((self.workers[m].moved for m in newest.members if m in self.workers), default=now)
            if self._formed() and now - since > patience.stall_s:
                return f"made no step for {patience.stall_s:g} s, nor did any other"
            if worker.joined < newest.number and now - max(self.announced_at, worker.moved) > patience.stall_s:
                return f"did not come to generation {newest.number} within {patience.stall_s:g} s"
        return ""

    def _fault(self, worker: Worker, code: int, now: float) -> list[Action]:
        said: list[Action] = [Log(f"worker {worker.member} {ended(code)}")]
        if worker.member > self._incident:
            self.restarts += self.on_failure == "restart"
            self._incident = self._names
        if self.on_failure == "stop":
            return [*said, *self.stop(f"worker {worker.member} {ended(code)}", now, code=status(code))]
        if self.on_failure == "restart" and self.restarts <= self.max_restarts:
            return said
        alive = sum(other.phase in ("starting", "ready") for other in self.workers.values())
        rest = self.sizes.floor(alive)
        if rest is None:
            why = "no worker may be replaced" if self.on_failure == "shrink" else "the restart budget is spent"
            return [*said, Log(f"{alive} workers are too few and {why}"), *self._fail(status(code), now)]
        self.target = min(self.target, rest)
        return [*said, Log(f"going on with {self.target} workers")]

    def _fail(self, code: int, now: float) -> list[Action]:
        if self._code is None:
            self._code = code
        actions: list[Action] = []
        for worker in self.workers.values():
            actions += self._kill(worker, "the run has failed")
        return [*actions, *self._decide(now)]

    def _kill(self, worker: Worker, reason: str) -> list[Action]:
        if worker.killed:
            return []
        worker.killed = True
        return [Kill(worker.member, reason)]

    def _dismiss(self, worker: Worker, now: float) -> list[Action]:
        worker.phase = "dismissed"
        worker.deadline = min(worker.deadline, now + self.patience.grace_s)
        return [Ask(worker.member, Notice(source="supervisor", time=now, deadline=worker.deadline, leave=True))]

    def _release(self, worker: Worker, reason: str) -> list[Action]:
        """Send home a worker that is in no group."""
        if worker.phase not in ("starting", "ready"):
            return []
        starting, worker.phase = worker.phase == "starting", "dismissed"
        worker.deadline = min(worker.deadline, self._looked + self.patience.grace_s)
        return self._kill(worker, reason) if starting else [Release(worker.member, reason)]

    def _decide(self, now: float) -> list[Action]:
        if self.over:
            return []
        if not self.workers and (self._code is not None or self.finishing or self.stopping):
            self.over = True
            return [End(self._final_code())]
        if self._code is not None:
            return []
        newest, workers = self.generation, list(self.workers.values())
        actions: list[Action] = []
        if self.finishing or (self.stopping and self._saved):  # the members are on their way out, each at its own pace
            waits = [w for w in workers if w.left == newest.number or w.formed < w.joined]  # for those who are gone
            idle = [w for w in workers if w.member not in newest.members or w in waits]
            actions += self._finish.left_behind(waits, newest, self.workers) if self.finishing else []
            return [*actions, *(action for worker in idle for action in self._release(worker, "the run has ended"))]
        if self.stopping:
            # Only those that never joined: a spare that did may be all that is left when the members are lost.
            idle = [w for w in workers if w.member not in newest.members and not w.formed]
            actions += [action for worker in idle for action in self._release(worker, "the run is stopping")]
        else:
            actions += self._to_target(now)
        return [*actions, *self._announce(now)]

    def _final_code(self) -> int:
        if self._code is not None:
            return self._code
        if self.finishing:
            return self._finish.code
        failed = [code for code in self._unsaved if code > 0 or not self._saved]
        return status(failed[0]) if failed else self._stop_code

    def _to_target(self, now: float) -> list[Action]:
        actions: list[Action] = []
        here = [worker for worker in self.workers.values() if worker.phase != "dismissed"]
        while len(here) < self.target:
            self._names += 1
            slot = min(set(range(len(self.workers) + 1)) - {worker.slot for worker in self.workers.values()})
            worker = Worker(member=self._names, slot=slot, started=now, heard=now, moved=now)
            self.workers[worker.member] = worker
            here.append(worker)
            actions.append(Start(worker.member, slot))
        ranked = self._ranked()
        surplus = [worker for worker in reversed(here) if worker.phase == "starting"] + ranked[::-1]
        for worker in surplus[: len(here) - self.target]:
            if worker.member not in self.generation.members:
                actions += self._release(worker, self._surplus)
            elif self._formed() or not self._whole():
                actions += self._dismiss(worker, now)
        return actions

    def _ranked(self) -> list[Worker]:
        """Ready workers in the order of the next generation: members first, as they were, then by name."""
        place = {member: rank for rank, member in enumerate(self.generation.members)}
        ready = [worker for worker in self.workers.values() if worker.phase == "ready" and not worker.killed]
        return sorted(ready, key=lambda worker: (place.get(worker.member, math.inf), worker.member))

    def _formed(self) -> bool:
        members = [self.workers.get(member) for member in self.generation.members]
        return all(worker is not None and worker.formed == self.generation.number for worker in members)

    def _whole(self) -> bool:
        """Whether every member of the newest generation is alive and stays."""
        members = [self.workers.get(member) for member in self.generation.members]
        return all(w is not None and w.phase in ("ready", "done") and not w.killed for w in members)

    def _announce(self, now: float) -> list[Action]:
        newest, ranked, interim = self.generation, self._ranked(), False
        last = max((worker.formed for worker in ranked), default=0)
        present = [worker for worker in ranked if worker.member in newest.members]
        survivors = [worker for worker in present if worker.formed == last > 0]
        given_up = min((worker.left_at for worker in present if worker.left == newest.number), default=math.inf)
        lost = bool(survivors) and (not self._whole() or (given_up < math.inf and not newest.interim))
        pool = survivors if lost else ranked
        size = self.sizes.floor(min(self.target, len(pool)))
        if lost and not self.stopping and size != min(self.target, len(pool)):
            size, interim = min(self.target, len(pool)), True
        if size is None and self.stopping:
            size = len(pool) or None  # enough to save
        if size is None or any(worker.phase == "done" for worker in self.workers.values()):
            return []
        wanted = tuple(worker.member for worker in pool[:size])
        starting = any(worker.phase == "starting" for worker in self.workers.values())
        if not present:  # the first generation, or the first after all were lost: begin with all there are
            due = not starting
        elif not self._whole():
            due = True
        elif newest.interim:
            due = (wanted != newest.members and self._formed()) or given_up < math.inf
        elif given_up < math.inf:
            due = now - given_up >= self.patience.settle_s
            self._futile += due
            if self._futile > _MOST_FUTILE:
                said = Log(
                    f"the workers live, but {_MOST_FUTILE} times they could not connect to one another: see their logs"
                )
                return [said, *self._fail(1, now)]
        else:
            waiting = min((w.ready_at for w in ranked if w.member not in newest.members), default=now)
            due = wanted != newest.members and self._formed()
            due = due and (not starting or now - waiting >= self.patience.linger_s)
        if not due:
            return []
        workers = sorted(self.workers.values(), key=lambda worker: worker.member)
        self.generation = Generation(
            number=newest.number + 1,
            members=wanted,
            dismissed=tuple(worker.member for worker in workers if worker.phase == "dismissed"),
            alive=tuple(worker.member for worker in workers if not worker.killed),
            interim=interim,
        )
        self.announced_at = now
        return [Announce(self.generation)]
