"""What is known about a run, as plain values for people and programs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swell.supervisor.membership import Membership
from swell.supervisor.next_generation import is_formed


@dataclass(frozen=True, slots=True)
class RunningWorker:
    """A worker process as the supervisor reaches it."""

    member: int
    node: int
    pid: int | None = None  # on its machine; None until it was started there
    log: str = ""


def run_status(members: Membership, running: Mapping[int, RunningWorker], now: float) -> dict[str, Any]:
    """The state of a run, of its machines and of each of its workers."""
    newest, places = members.generation, members.places
    ranks = {member: rank for rank, member in enumerate(newest.members)}
    return {
        "state": _state(members),
        "target": members.target,
        "wanted": members.wanted,
        "machines": [
            {
                "machine": node.number,
                "name": node.name,
                "host": node.host,
                "slots": None if node.slots == math.inf else int(node.slots),
                "leaving": node.leaving,
            }
            for node in places.nodes.values()
        ],
        "allowed": list(members.sizes.allowed),
        "generation": newest.number,
        "members": list(newest.members),
        "restarts": members.restarts,
        "max_restarts": members.max_restarts,
        "workers": [
            {
                "member": worker.member,
                "rank": ranks.get(worker.member),
                "pid": running[worker.member].pid,
                "machine": worker.node,
                "slot": worker.slot,
                "phase": worker.phase,
                "steps": worker.activity.steps,
                "silent_s": round(now - worker.heard_at, 3),
                "log": running[worker.member].log,
            }
            for worker in members.workers.values()
            if worker.member in running
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
