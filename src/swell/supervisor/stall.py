"""Which worker is stuck: how long the main thread of a worker may go without a sign of progress, by what it does.

By default the limit is 60 s, or 20 usual steps where these are longer, and it holds for a worker that stands in a step
(or between two batches of an evaluation) and computes nothing. Where a worker computes, loads data, saves, has left
the loop or is in the first steps of a world, the limit is ten times as long, because such phases are long by nature.
Code outside the loop that computes while nobody waits for it has no limit. A worker that waits for others is never to
blame.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LEAST_S, STEPS, LONG = 60.0, 20, 10.0

DOING = {
    "starting": "in its first step",
    "training": "in a step",
    "evaluating": "in an evaluation",
    "loading": "loading data",
    "saving": "saving a checkpoint",
    "outside": "outside the training loop",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What a heartbeat says of a worker's main thread."""

    doing: str = "training"  # one of DOING
    steps: int = 0  # that it has made
    waiting: bool = False  # for other workers, in an exchange or for the next world
    still_s: float = 0.0  # since its last sign of progress
    idle: bool = False  # whether its processes have computed next to nothing lately
    usual_s: float | None = None  # the median of its last steps; None where it has made too few in this world

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Activity:
        """The activity in a heartbeat; a worker that says nothing of it is taken to be in its first step."""
        if "doing" not in message:
            return cls(doing="starting")
        usual_s = message["usual_s"]
        return cls(
            doing=str(message["doing"]),
            steps=int(message["steps"]),
            waiting=bool(message["waiting"]),
            still_s=float(message["still_s"]),
            idle=bool(message["idle"]),
            usual_s=None if usual_s is None else float(usual_s),
        )


def stall_limit(activity: Activity, *, awaited: bool, stall_s: float | None) -> float:
    """How long a worker may go without a sign of progress; ``awaited`` says whether another one waits for it.

    ``stall_s`` is the user's own limit, for every phase alike; None for the default.

    >>> stall_limit(Activity(idle=True, usual_s=0.5), awaited=True, stall_s=None)
    60.0
    >>> stall_limit(Activity(idle=False, usual_s=9.0), awaited=True, stall_s=None)
    1800.0
    """
    if activity.waiting:
        return math.inf
    if stall_s is not None:
        return stall_s
    short_s = LEAST_S if activity.usual_s is None else max(LEAST_S, STEPS * activity.usual_s)
    if activity.doing == "outside" and not activity.idle and not awaited:
        return math.inf
    in_step = activity.doing in ("training", "evaluating") and activity.usual_s is not None
    return short_s if in_step and activity.idle else LONG * short_s


def describe_stall(activity: Activity, *, for_s: float, limit_s: float, stall_s: float | None) -> str:
    """Why a worker is ended, in words."""
    where = DOING.get(activity.doing, activity.doing)
    text = f"made no progress for {for_s:.0f} s {where}"
    text += " and computed nothing" if activity.idle else ""
    if stall_s is not None:
        return f"{text}; --stall-timeout is {stall_s:g} s"
    usual = "" if activity.usual_s is None else f", a step usually takes {activity.usual_s:.2g} s"
    return f"{text}{usual}; the limit was {limit_s:.0f} s, give another one by --stall-timeout"
