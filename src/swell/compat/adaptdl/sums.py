"""Bringing accumulators of all replicas together."""

from __future__ import annotations

from collections.abc import Sequence

from swell.checkpoint.transfer import gather_values
from swell.compat.adaptdl.members import Sums
from swell.core.protocols import Collective


def merge(accumulators: Sequence[Sums], collective: Collective) -> None:
    """Sum over the replicas what was added to any of them, in one exchange.

    If a replica is lost in it, this replica changes nothing: additions that were not settled can still be dropped.
    """
    own = {accumulator.name: accumulator.unmerged() for accumulator in accumulators}
    for values in gather_values(collective, own):
        for accumulator in accumulators:
            accumulator.merge(values.get(accumulator.name, {}))
    for accumulator in accumulators:
        accumulator.forget()
