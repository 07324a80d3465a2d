"""How long the supervisor waits for its workers, and which worker has kept it waiting too long."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from swell.supervisor.generation import Generation
from swell.supervisor.next_generation import is_formed
from swell.supervisor.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long the supervisor waits for what, in seconds."""

    settle_s: float = 0.25  # from the first lost connection to a new generation, when nobody has died
    linger_s: float = 2.0  # from the first newcomer that is ready to its generation, while others still start
    start_s: float = 600.0  # from the start of a process until it is ready
    hang_s: float = 60.0  # without a heartbeat: a stopped process, or one that never releases the interpreter
    stall_s: float = math.inf  # without a step on any worker
    grace_s: float = 60.0  # from a notice to the kill


def overdue(
    worker: Worker,
    workers: Mapping[int, Worker],
    newest: Generation,
    *,
    announced_at: float,
    patience: Patience,
    now: float,
) -> str:
    """Why a worker must be killed now; empty where it is in time."""
    if now > worker.deadline:
        return "did not go before its deadline"
    if worker.leaving:
        return ""
    if worker.phase == "starting":
        late = now - worker.started_at > patience.start_s
        return f"was not ready within {patience.start_s:g} s" if late else ""
    if now - worker.heard_at > patience.hang_s:
        return f"gave no sign of life for {patience.hang_s:g} s"
    if worker.member in newest.members and worker.phase == "ready":
        last_step_at = max((workers[member].moved_at for member in newest.members if member in workers), default=now)
        if is_formed(workers, newest) and now - last_step_at > patience.stall_s:
            return f"made no step for {patience.stall_s:g} s, nor did any other"
        if worker.joined < newest.number and now - max(announced_at, worker.moved_at) > patience.stall_s:
            return f"did not come to generation {newest.number} within {patience.stall_s:g} s"
    return ""
