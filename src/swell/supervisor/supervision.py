"""The supervisor of a worker, as others can find out whether it lives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """One start of a supervisor; its workers may follow one another as writers of a run while it lives."""

    identity: str  # of the supervisor's process
    lock: str  # the file that it keeps locked
