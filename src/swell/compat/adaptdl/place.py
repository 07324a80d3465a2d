"""Where an AdaptDL script is: which epoch, which of its loops, and how far in an evaluation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Place:
    """Counts that survive a restart, and those of the epoch under way."""

    epoch: int = 0  # epochs finished; also the number of the one under way
    in_epoch: bool = False
    finished_loops: int = 0  # loader loops of this epoch that are done
    entered_loops: int = 0  # the same, counted by this process since the epoch began here
    ended_loops: int = 0  # loader loops that are done, in epochs or not
    index: int = 0  # samples done in an evaluation loop under way
    created: int = 0  # accumulators since the epoch began, for their names
    left_in: int | None = None  # the epoch in which the training loop was left early

    def begin_epoch(self) -> None:
        """The body of an epoch begins."""
        self.in_epoch, self.entered_loops, self.created = True, 0, 0

    def end_epoch(self) -> None:
        """The body of an epoch is done."""
        self.epoch += 1
        self.finished_loops = self.index = 0
        self.in_epoch = False

    def enter_loop(self) -> bool:
        """A loader loop begins; True where it was done before a restart."""
        if not self.in_epoch:
            return False
        self.entered_loops += 1
        return self.entered_loops <= self.finished_loops

    def end_loop(self) -> None:
        """A loader loop is done, or was left."""
        self.index = 0
        self.ended_loops += 1
        if self.in_epoch:
            self.finished_loops = max(self.finished_loops, self.entered_loops)

    def counts(self, steps: int) -> list[int]:
        """What checkpoints hold of it."""
        return [steps, self.epoch, self.finished_loops, self.index, self.ended_loops]

    def restore(self, counts: list[int], *, left_in: int | None) -> None:
        """Continue from saved counts."""
        _, self.epoch, self.finished_loops, self.index, self.ended_loops = counts
        self.left_in = left_in
