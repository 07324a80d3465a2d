"""What the owner of a run may ask of its supervisor, and how that is carried out."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from swell.errors import ConfigError
from swell.supervisor.actions import Action
from swell.supervisor.membership import Membership
from swell.supervisor.status import RunningWorker, run_status

Do = Callable[[Sequence[Action]], None]
Order = Callable[[int, Mapping[str, Any]], None]


def carry_out(
    request: Mapping[str, Any],
    members: Membership,
    running: Mapping[int, RunningWorker],
    *,
    do: Do,
    order: Order,
    now: float,
) -> dict[str, Any]:
    """The reply to a request; an unknown word or a wrong argument is a ``ConfigError``.

    ``do`` carries out what the membership decides, ``order`` sends an order to a machine.
    """
    word = request["say"]
    if word == "status":
        return run_status(members, running, now)
    if word == "resize":
        return _resize(request, members, do=do, now=now)
    if word == "stop":
        grace_s = request.get("grace_s")
        if grace_s is not None and not (isinstance(grace_s, (int, float)) and grace_s >= 0):
            raise ConfigError(f"grace_s is {grace_s!r}; expected seconds, 0 or more.")
        do(members.stop("swell stop", now, grace_s=grace_s))
        return {"stopping": True}
    if word == "chaos":
        return _send_signal(request, members, running, order)
    raise ConfigError(f"the command is {word!r}; expected status, resize, stop or chaos.")


def _resize(request: Mapping[str, Any], members: Membership, *, do: Do, now: float) -> dict[str, Any]:
    workers = request.get("workers")
    if not isinstance(workers, int):
        raise ConfigError(f"workers is {workers!r}; expected a whole number.")
    members.refusal = ""
    do(members.resize(workers, now, kill=bool(request.get("kill"))))
    if members.refusal:
        raise ConfigError(
            f"workers is {workers}; expected a number that this machine can start: {members.refusal}. The run goes on "
            f"with {members.target}; ask again when there is room for more."
        )
    room = members.places.room
    return {"target": members.target, "wanted": members.wanted, "room": None if room == math.inf else room}


def _send_signal(
    request: Mapping[str, Any], members: Membership, running: Mapping[int, RunningWorker], order: Order
) -> dict[str, Any]:
    """Send a signal to a worker, by rank or by member."""
    name, member, rank = request.get("signal", "SIGKILL"), request.get("member"), request.get("rank")
    ranks = members.generation.members
    if member is None and isinstance(rank, int) and 0 <= rank < len(ranks):
        member = ranks[rank]
    known = isinstance(member, int) and member in running
    if not (known and isinstance(name, str) and name.startswith("SIG") and hasattr(signal, name)):
        raise ConfigError(
            f"the request is to send {name!r} to rank {rank} or member {member}; expected the name of a signal "
            f"and a rank from 0 to {len(ranks) - 1} or a member of {sorted(running)}."
        )
    worker = running[member]  # pyright: ignore[reportArgumentType]
    order(worker.node, {"say": "signal", "member": member, "signal": name})
    return {"member": member, "pid": worker.pid}
