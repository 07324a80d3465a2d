"""One worker as the supervisor knows it, and how long it waits for what."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long the supervisor waits for what, in seconds."""

    settle_s: float = 0.25  # from the first lost connection to a new generation, when nobody has died
    linger_s: float = 2.0  # from the first newcomer that is ready to its generation, while others still start
    start_s: float = 600.0  # from the start of a process to its first word
    hang_s: float = 60.0  # without a heartbeat: a stopped process, or one that never lets go of the interpreter
    stall_s: float = math.inf  # without a step on any worker
    grace_s: float = 60.0  # from a notice to the kill


@dataclass(slots=True, kw_only=True)
class Worker:
    """A worker process that has not been seen to end."""

    member: int
    slot: int
    started: float
    heard: float
    moved: float  # when its progress last changed
    phase: Literal["starting", "ready", "dismissed", "done"] = "starting"
    ready_at: float = math.inf
    joined: int = 0  # newest generation it began to form
    formed: int = 0  # newest generation it formed
    left: int = 0  # newest generation it gave up
    left_at: float = math.inf
    progress: int = 0
    deadline: float = math.inf
    killed: bool = False
    leaving: bool = False  # said that it is about to exit: no more heartbeats, only a deadline


def ended(code: int) -> str:
    """How a process came to its end, in words; ``code`` below 0 means that signal."""
    return f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"


def status(code: int) -> int:
    """The exit status a shell would show; 1 for a process that ended well where it should not have."""
    return 128 - code if code < 0 else code or 1
