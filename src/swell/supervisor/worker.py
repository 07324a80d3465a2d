"""One worker as the supervisor knows it: its state, and the orders that end its part in the run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from swell.supervisor.actions import Action, Ask, Kill, Release
from swell.supervisor.notice import Notice
from swell.supervisor.stall import Activity


@dataclass(slots=True, kw_only=True)
class Worker:
    """A worker process that has not exited yet, as far as the supervisor knows."""

    member: int
    slot: int
    node: int = 0  # the number of its machine
    started_at: float
    heard_at: float  # when its last message came
    moved_at: float  # when its progress last changed
    phase: Literal["starting", "ready", "dismissed", "done"] = "starting"
    ready_at: float = math.inf
    joined: int = 0  # newest generation it began to form
    formed: int = 0  # newest generation it formed
    settled: int = 0  # newest one that all its members formed, so that this one has the state of the run
    left: int = 0  # newest generation it gave up
    left_at: float = math.inf
    progress: int = 0
    activity: Activity = field(default_factory=Activity)  # as of its last heartbeat
    deadline: float = math.inf
    killed: bool = False
    asked_by: str = ""  # who asked it to leave, while nobody who stays has the state of the run yet
    leaving: bool = False  # it announced its exit: no more heartbeats, only a deadline

    def kill(self, reason: str) -> list[Action]:
        """Kill the process, once."""
        if self.killed:
            return []
        self.killed = True
        return [Kill(self.member, reason)]

    def dismiss(self, now: float, *, grace_s: float) -> list[Action]:
        """Give notice to a member: it leaves with the next generation."""
        self.phase = "dismissed"
        self.deadline = min(self.deadline, now + grace_s)
        return [Ask(self.member, Notice(source="supervisor", time=now, deadline=self.deadline, leave=True))]

    def release(self, reason: str, *, deadline: float) -> list[Action]:
        """Send home a worker that is in no group; one that is still starting cannot hear and is killed."""
        if self.phase not in ("starting", "ready"):
            return []
        starting, self.phase = self.phase == "starting", "dismissed"
        self.deadline = min(self.deadline, deadline)
        return self.kill(reason) if starting else [Release(self.member, reason)]


def describe_exit(code: int) -> str:
    """How a process ended, in words; ``code`` below 0 means that signal."""
    return f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"


def failure_status(code: int) -> int:
    """The exit status a shell would show; 1 for a process that exited with 0 too early."""
    return 128 - code if code < 0 else code or 1
