"""Notices: somebody asked this worker to stop or to leave, and by when."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A request to stop after a step, save and go."""

    source: str  # who asked: "SIGTERM", "file /tmp/stop", "supervisor"
    time: float  # when it came, in seconds since the epoch
    deadline: float | None = None  # when this worker must be gone, in seconds since the epoch; None when unknown
    leave: bool = False  # whether only this worker goes and the others carry on; otherwise the whole run stops
