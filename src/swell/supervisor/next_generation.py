"""Which generation comes next: functions of the workers and of the newest generation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from swell.supervisor.generation import Generation
from swell.supervisor.sizes import WorldSizes
from swell.supervisor.worker import Worker


@dataclass(frozen=True, slots=True)
class Proposal:
    """A generation that is due."""

    members: tuple[int, ...]
    interim: bool
    futile: bool  # nobody died, but the newest generation was given up


def ranked(workers: Mapping[int, Worker], newest: Generation) -> list[Worker]:
    """Ready workers in the order of the next generation: members first, in their order, then the others by name."""
    ranks = {member: rank for rank, member in enumerate(newest.members)}
    ready = [worker for worker in workers.values() if worker.phase == "ready" and not worker.killed]
    return sorted(ready, key=lambda worker: (ranks.get(worker.member, math.inf), worker.member))


def has_joined(workers: Mapping[int, Worker], newest: Generation) -> bool:
    """Whether every member lives and has at least begun to form the generation."""
    members = [workers.get(member) for member in newest.members]
    return all(worker is not None and worker.joined == newest.number for worker in members)


def is_formed(workers: Mapping[int, Worker], newest: Generation) -> bool:
    """Whether every member lives and has formed the generation."""
    members = [workers.get(member) for member in newest.members]
    return all(worker is not None and worker.formed == newest.number for worker in members)


def is_whole(workers: Mapping[int, Worker], newest: Generation) -> bool:
    """Whether every member of the generation is alive and stays."""
    members = [workers.get(member) for member in newest.members]
    return all(w is not None and w.phase in ("ready", "done") and not w.killed for w in members)


def _survivors(candidates: list[Worker], newest: Generation) -> list[Worker]:
    """Members of the newest generation that have the newest state of the run in memory.

    While one of them lives that has not formed it, nothing was done in it: those who were in the one before are as far
    as they were, and a newcomer that has formed it has got nothing from them yet.
    """
    members = set(newest.members)
    present = [worker for worker in candidates if worker.member in members]
    settled = max((worker.settled for worker in candidates), default=0)
    if settled and any(worker.formed < newest.number for worker in present):
        return [worker for worker in present if worker.settled == settled]
    formed = max((worker.formed for worker in candidates), default=0)
    return [worker for worker in present if worker.formed == formed > 0]


def propose(
    workers: Mapping[int, Worker],
    newest: Generation,
    *,
    sizes: WorldSizes,
    target: int,
    stopping: bool,
    settle_s: float,
    linger_s: float,
    now: float,
) -> Proposal | None:
    """The generation to announce now; None while the newest one holds, or while too few workers are ready."""
    candidates = ranked(workers, newest)
    in_newest = set(newest.members)
    present = [worker for worker in candidates if worker.member in in_newest]
    survivors = _survivors(candidates, newest)
    given_up_at = min((worker.left_at for worker in present if worker.left == newest.number), default=math.inf)
    given_up, whole = given_up_at < math.inf, is_whole(workers, newest)
    lost = bool(survivors) and (not whole or (given_up and not newest.interim))
    pool = survivors if lost else candidates
    most, interim = min(target, len(pool)), False
    size = sizes.floor(most)
    if lost and not stopping and size != most:
        size, interim = most, True
    if size is None and stopping:
        size = len(pool) or None  # enough to save
    if size is None or any(worker.phase == "done" for worker in workers.values()):
        return None
    members = tuple(worker.member for worker in pool[:size])
    changes = members != newest.members and is_formed(workers, newest)
    starting = any(worker.phase == "starting" for worker in workers.values())
    futile = False
    if not present:  # the first generation, or the first after all workers were lost: start with all of them
        due = not starting
    elif not whole:
        due = True
    elif newest.interim:
        due = changes or given_up
    elif given_up:
        due = futile = now - given_up_at >= settle_s
    else:
        waiting_since = min((w.ready_at for w in candidates if w.member not in in_newest), default=now)
        due = changes and (not starting or now - waiting_since >= linger_s)
    return Proposal(members, interim, futile) if due else None
