"""The accumulators of a session, merged over the replicas in one exchange."""

from __future__ import annotations

from collections.abc import Sequence

from swell.checkpoint.transfer import gather_values
from swell.compat.adaptdl.members import Accumulator
from swell.core.protocols import Collective


class Sums:
    """All accumulators, and how often they were merged."""

    def __init__(self) -> None:
        self.accumulators: list[Accumulator] = []
        self.merges = 0  # the accumulators of a replica with more merges hold what the others have added

    def settle(self, *, keep: bool) -> None:
        """Count what was added in the step or batch that has ended, or drop it because the samples come again."""
        for accumulator in self.accumulators:
            accumulator.settle(keep=keep)

    def merge(self, collective: Collective, accumulators: Sequence[Accumulator] | None = None) -> None:
        """Sum over the replicas what was added to the accumulators, by default to all of them.

        There is one exchange. If a replica is lost in it, this replica changes nothing: it can merge again, or drop
        additions that were not settled, or take over the sums of a replica that has finished the merge.
        """
        group = self.accumulators if accumulators is None else accumulators
        own = {accumulator.name: accumulator.unmerged() for accumulator in group}
        for values in gather_values(collective, own):
            for accumulator in group:
                accumulator.merge(values.get(accumulator.name, {}))
        for accumulator in group:
            accumulator.forget()
        self.merges += 1

    def forget(self) -> None:
        """Drop what was added on this replica, because another replica's sums hold it."""
        for accumulator in self.accumulators:
            accumulator.forget()

    def end_epoch(self) -> None:
        """Keep only accumulators that were created outside an epoch; they begin another one."""
        self.accumulators = [accumulator for accumulator in self.accumulators if accumulator.epoch is None]
        for accumulator in self.accumulators:
            accumulator.end_epoch()

    def retire(self, epoch: int) -> None:
        """Remove the accumulators of an epoch that was left early; its body creates them again."""
        self.accumulators = [accumulator for accumulator in self.accumulators if accumulator.epoch != epoch]
