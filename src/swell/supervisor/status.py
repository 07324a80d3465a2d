"""What is known about a run, as plain values for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swell.supervisor.membership import Membership
from swell.supervisor.next_generation import is_formed
from swell.supervisor.worker_process import WorkerProcess


def run_status(members: Membership, processes: Mapping[int, WorkerProcess], now: float) -> dict[str, Any]:
    """The state of a run and of each of its workers."""
    newest = members.generation
    return {
        "state": _state(members),
        "target": members.target,
        "allowed": list(members.sizes.allowed),
        "generation": newest.number,
        "members": list(newest.members),
        "restarts": members.restarts,
        "max_restarts": members.max_restarts,
        "workers": [
            {
                "member": worker.member,
                "rank": newest.members.index(worker.member) if worker.member in newest.members else None,
                "pid": processes[worker.member].pid,
                "slot": worker.slot,
                "phase": worker.phase,
                "steps": worker.activity.steps,
                "silent_s": round(now - worker.heard_at, 3),
                "log": str(processes[worker.member].log),
            }
            for worker in members.workers.values()
            if worker.member in processes
        ],
    }


def _state(members: Membership) -> str:
    newest = members.generation
    if members.end.finishing:
        return "finishing"
    if members.end.stopping:
        return "stopping"
    if newest.members and is_formed(members.workers, newest):
        return "training"
    return "forming" if newest.number else "starting"
