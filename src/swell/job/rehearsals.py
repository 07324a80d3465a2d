"""Which rehearsal the environment orders."""

from __future__ import annotations

from swell.job.branching import BranchRehearsal
from swell.job.rehearsal import NoRehearsal, Rehearsal, Rehearse

AnyRehearsal = Rehearsal | BranchRehearsal | NoRehearsal


def rehearsal_of(order: str | None) -> AnyRehearsal:
    """The rehearsal that the environment orders, or none."""
    if order is None:
        return NoRehearsal()
    rehearse = Rehearse.from_json(order)
    return BranchRehearsal(rehearse) if rehearse.branch else Rehearsal(rehearse)
