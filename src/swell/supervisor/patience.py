"""How long the supervisor waits for its workers, and which worker has kept it waiting too long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from swell.supervisor.generation import Generation
from swell.supervisor.next_generation import has_joined
from swell.supervisor.notice import Notice
from swell.supervisor.stall import describe_stall, stall_limit
from swell.supervisor.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long the supervisor waits for what, in seconds."""

    settle_s: float = 0.25  # from the first lost connection to a new generation, when nobody has died
    linger_s: float = 2.0  # from the first newcomer that is ready to its generation, while others still start
    start_s: float = 600.0  # from the start of a process until it is ready; also while no process can be started
    hang_s: float = 60.0  # without a heartbeat: a stopped process, or one that never releases the interpreter
    stall_s: float | None = None  # without a sign of progress; None for the limits of ``stall``
    grace_s: float = 60.0  # from a notice to the kill


@dataclass(frozen=True, slots=True)
class Moment:
    """What is true of all workers now, so that looking at each of them takes no look at the others."""

    newest: Generation
    members: frozenset[int]
    joined: bool  # whether all members have begun to form the newest generation, so that nobody waits for one to come
    waiting: int  # how many members wait for others
    announced_at: float
    stopping: Notice | None

    @classmethod
    def of(
        cls, workers: Mapping[int, Worker], newest: Generation, *, announced_at: float, stopping: Notice | None
    ) -> Moment:
        """As they are now."""
        waiting = sum(member in workers and workers[member].activity.waiting for member in newest.members)
        members, joined = frozenset(newest.members), has_joined(workers, newest)
        return cls(newest, members, joined, waiting, announced_at, stopping)


def overdue(worker: Worker, around: Moment, *, patience: Patience, now: float) -> str:
    """Why a worker must be killed now; empty where it is in time."""
    newest = around.newest
    if now > worker.deadline:
        return "did not go before its deadline"
    if worker.leaving:
        return ""
    if worker.phase == "starting":
        late = now - worker.started_at > patience.start_s
        return f"was not ready within {patience.start_s:g} s" if late else ""
    if now - worker.heard_at > patience.hang_s:
        return f"gave no sign of life for {patience.hang_s:g} s"
    if worker.member not in around.members or worker.phase != "ready":
        return ""
    awaited = around.waiting > worker.activity.waiting  # by another member
    if around.stopping is not None and awaited:
        return _holds_up(worker, around.stopping, now=now)
    if around.joined or worker.joined < newest.number:
        since = worker.moved_at if worker.joined == newest.number else max(around.announced_at, worker.moved_at)
        limit_s = stall_limit(worker.activity, awaited=awaited, stall_s=patience.stall_s)
        if now - since > limit_s:
            facts = {"for_s": now - since, "limit_s": limit_s, "stall_s": patience.stall_s}
            return describe_stall(worker.activity, **facts)
    return ""


def _holds_up(worker: Worker, stopping: Notice, *, now: float) -> str:
    """Why a worker is ended before the deadline of a stop, so that those who wait for it have time left to save."""
    assert stopping.deadline is not None
    half_s = (stopping.deadline - stopping.time) / 2
    if now - max(worker.heard_at, stopping.time) > half_s:
        return f"gave no sign of life for {half_s:g} s, and the others cannot save before it is gone"
    still_s = now - max(worker.moved_at, stopping.time)
    busy = worker.activity.waiting or worker.activity.doing == "saving"
    if not busy and still_s > max(half_s, 2 * (worker.activity.usual_s or 0.0)):
        return f"made no progress for {still_s:.0f} s, and the others cannot save before it is gone"
    return ""
