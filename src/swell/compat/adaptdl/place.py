"""Where an AdaptDL script is: its epoch, its loops, and its position in an evaluation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Place:
    """Counts that survive a restart, and counts of the epoch under way in this process."""

    epoch: int = 0  # finished epochs, which is also the number of the one under way
    in_epoch: bool = False
    finished_loops: int = 0  # loops over loaders that are done in this epoch
    entered_loops: int = 0  # loops over loaders that this process has begun, or skipped, in this epoch
    ended_loops: int = 0  # loops over loaders that are done, inside and outside epochs
    index: int = 0  # samples done in the evaluation loop under way
    num_accumulators: int = 0  # accumulators created in this epoch, for their names
    early_exit: int | None = None  # the epoch in which the training loop was left early

    def begin_epoch(self) -> None:
        """The body of an epoch begins."""
        self.in_epoch, self.entered_loops, self.num_accumulators = True, 0, 0

    def end_epoch(self) -> None:
        """The body of an epoch is done."""
        self.epoch += 1
        self.finished_loops = self.index = 0
        self.in_epoch = False

    def enter_loop(self) -> bool:
        """A loop over a loader begins; True if it was done before a restart."""
        if not self.in_epoch:
            return False
        self.entered_loops += 1
        return self.entered_loops <= self.finished_loops

    def end_loop(self) -> None:
        """A loop over a loader is done, or was left."""
        self.index = 0
        self.ended_loops += 1
        if self.in_epoch:
            self.finished_loops = max(self.finished_loops, self.entered_loops)

    def counts(self, steps: int) -> list[int]:
        """The counts that a checkpoint holds; the first is the number of optimizer steps."""
        return [steps, self.epoch, self.finished_loops, self.index, self.ended_loops]

    def restore(self, counts: list[int], *, early_exit: int | None) -> None:
        """Continue from saved counts."""
        _, self.epoch, self.finished_loops, self.index, self.ended_loops = counts
        self.early_exit = early_exit
