"""Which samples are done: (seed, epoch, cursor), moved only by a commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from swell.core.counts import whole_number
from swell.core.order import seed_number
from swell.errors import CheckpointError, ConfigError, DataError, LoopError

_STATE = ("seed", "epoch", "cursor", "samples", "length")


class Ledger:
    """Hands out an epoch's positions, step by step, and keeps which of them are committed.

    A step takes the span after the committed cursor, whatever its size; the cursor moves when the step is committed. A
    step that failed is not committed, and the next span starts where it started. So in an epoch each position is
    committed once and in ascending order, for any sequence of batch sizes, worlds and crashes; an
    :class:`swell.core.protocols.Order` of the same seed and epoch says which sample stands at a position.

    ``length`` is the number of samples in an epoch, or a function from epoch to that number. With ``drop_last`` an
    epoch ends when fewer samples remain than the batch that is asked for.

    >>> ledger = Ledger(10, seed=0)
    >>> ledger.next_span(4)
    (0, 4)
    >>> ledger.next_span(6)  # the step of 4 failed; a step of 6 takes its place
    (0, 6)
    >>> ledger.commit(6)
    >>> ledger.next_span(6)  # the last, short step
    (6, 10)
    >>> ledger.commit(10)
    >>> ledger.next_span(6) is None
    True
    """

    def __init__(self, length: int | Callable[[int], int], *, seed: int, drop_last: bool = False) -> None:
        self._length_of = length if callable(length) else lambda epoch: length
        self._seed = seed_number(seed)
        self._drop_last = drop_last
        self._samples = 0
        self._begin(0)

    @property
    def seed(self) -> int:
        """The seed of every epoch's order."""
        return self._seed

    @property
    def epoch(self) -> int:
        """The epoch that is being read, from 0."""
        return self._epoch

    @property
    def length(self) -> int:
        """Samples in this epoch, committed or not."""
        return self._length

    @property
    def cursor(self) -> int:
        """Samples committed in this epoch; also the position of the first one that is not."""
        return self._cursor

    @property
    def samples(self) -> int:
        """Samples committed over all epochs."""
        return self._samples

    @property
    def remaining(self) -> int:
        """Samples of this epoch that are not committed."""
        return self._length - self._cursor

    def next_span(self, global_batch: int) -> tuple[int, int] | None:
        """Positions ``start`` to ``stop`` of the next step, or ``None`` where the epoch has no further step.

        The last step of an epoch is short where the batch does not divide what remains; with ``drop_last`` it is left
        out, and ``DataError`` is raised where that would leave out the whole epoch. Nothing moves until ``commit``.
        """
        global_batch = whole_number(global_batch, name="global_batch")
        self._pending = None
        if self._drop_last and self.remaining < global_batch:
            if self._cursor == 0:
                raise DataError(
                    f"a global batch of {global_batch} with drop_last leaves out all {self._length} samples of the "
                    f"epoch: lower the batch to {self._length} or less, or set drop_last=False."
                )
            return None
        if self.remaining == 0:
            return None
        self._pending = min(self._cursor + global_batch, self._length)
        return self._cursor, self._pending

    def commit(self, stop: int) -> None:
        """Count the span just handed out as done; call it together with the optimizer's step.

        Raises ``LoopError`` for anything but the end of the span that ``next_span`` gave last, and for a second commit.
        """
        if self._pending is None:
            raise LoopError(
                f"a commit up to position {stop} without a span that is under way: take one with next_span() first; "
                f"each span is committed once."
            )
        if stop != self._pending:
            raise LoopError(
                f"a commit up to position {stop}, but the span under way is {self._cursor} to {self._pending}: "
                f"commit({self._pending}), or take another span first."
            )
        self._samples += self._pending - self._cursor
        self._cursor, self._pending = self._pending, None

    def next_epoch(self) -> None:
        """Go on to the next epoch; what remains of this one is left unread."""
        self._begin(self._epoch + 1)

    def state_dict(self) -> dict[str, int]:
        """All that is needed to go on from the last commit, on any number of replicas: plain ints."""
        return {
            "seed": self._seed,
            "epoch": self._epoch,
            "cursor": self._cursor,
            "samples": self._samples,
            "length": self._length,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; on an error the ledger stays as it was.

        Raises ``DataError`` where the epoch has another length than it had, ``CheckpointError`` where the state was
        written with another seed or cannot have been written by a ledger.
        """
        try:
            seed, epoch, cursor, samples, length = (whole_number(state[name], name=name, at_least=0) for name in _STATE)
        except (KeyError, TypeError, ConfigError) as error:
            raise CheckpointError(
                f"not a ledger's state: {error}. Expected whole numbers for {', '.join(_STATE)}; load what "
                f"state_dict() gave, from a complete checkpoint."
            ) from error
        if seed != self._seed:
            raise CheckpointError(
                f"the checkpoint was written with seed {seed}, this run has seed {self._seed}: its order is another, "
                f"and samples would be read twice or never. Give seed={seed} to go on, or start a new run."
            )
        found = self._epoch_length(epoch)
        if found != length:
            raise DataError(
                f"epoch {epoch} has {found} samples, but had {length} when the checkpoint was written: samples would "
                f"be read twice or never. Give the data set of {length} samples to go on, or start a new run."
            )
        if cursor > length or cursor > samples:
            raise CheckpointError(
                f"the checkpoint has {cursor} samples of epoch {epoch} committed, and {samples} in all; expected at "
                f"most the epoch's {length}, and no less in all than in one epoch. It is damaged: load an older one."
            )
        self._epoch, self._length, self._cursor, self._samples, self._pending = epoch, length, cursor, samples, None

    def _begin(self, epoch: int) -> None:
        self._length = self._epoch_length(epoch)
        self._epoch = epoch
        self._cursor = 0
        self._pending: int | None = None

    def _epoch_length(self, epoch: int) -> int:
        length = whole_number(self._length_of(epoch), name="length", at_least=0)
        if length == 0:
            raise DataError(f"epoch {epoch} has no samples: give a data set with at least 1.")
        return length
