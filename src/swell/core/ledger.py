"""Which samples are done: (seed, epoch, cursor), which only a commit moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from swell.core.base_steps import base_steps, base_steps_of_epoch
from swell.core.counts import whole_number
from swell.core.order import seed_number
from swell.errors import CheckpointError, ConfigError, DataError, LoopError

_STATE = ("seed", "epoch", "cursor", "samples", "length")


class Ledger:
    """Hands out an epoch's positions, step by step, and knows which of them are committed.

    A step takes the span after the committed cursor, and the cursor moves when the step is committed. A step that
    failed is not committed, so the next span starts where it started. In an epoch each position is therefore committed
    once and in ascending order, for any sequence of batch sizes, worlds and crashes. An
    :class:`swell.core.protocols.Order` of the same seed and epoch maps a position to its sample.

    ``length`` is the number of samples in an epoch, or a function from epoch to that number. With ``drop_last`` an
    epoch ends when fewer samples remain than the next batch has.

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
        self.samples = 0
        self._begin(0)

    @property
    def seed(self) -> int:
        """The seed of every epoch's order."""
        return self._seed

    @property
    def remaining(self) -> int:
        """Samples of this epoch that are not committed."""
        return self.length - self.cursor

    def base_steps(self, start: int, stop: int, *, base: int) -> float:
        """How many steps at the batch ``base`` these positions of the epoch are worth by their number."""
        return base_steps(start, stop, base=base, length=self.length, drop_last=self._drop_last)

    def base_steps_of_epoch(self, base: int) -> int:
        """How many steps a loop at the batch ``base`` takes through this epoch."""
        return base_steps_of_epoch(self.length, base=base, drop_last=self._drop_last)

    def next_span(self, global_batch: int) -> tuple[int, int] | None:
        """Positions ``start`` to ``stop`` of the next step, or ``None`` at the end of the epoch.

        The last step of an epoch may be short. With ``drop_last`` it is left out, and ``DataError`` is raised if that
        leaves out the whole epoch. Nothing moves until ``commit``.
        """
        if type(global_batch) is not int or global_batch < 1:
            global_batch = whole_number(global_batch, name="global_batch")
        self._pending, remaining = None, self.length - self.cursor
        if self._drop_last and remaining < global_batch:
            if self.cursor == 0:
                raise DataError(
                    f"global_batch is {global_batch} with drop_last; expected at most {self.length}, the samples of "
                    f"the epoch, or all are left out. Lower it to {self.length} or less, or set drop_last=False."
                )
            return None
        if remaining == 0:
            return None
        self._pending = min(self.cursor + global_batch, self.length)
        return self.cursor, self._pending

    def commit(self, stop: int) -> None:
        """Count the latest span as done; call it together with the optimizer's step.

        Raises ``LoopError`` if ``stop`` is not the end of the latest ``next_span``, and for a second commit.
        """
        if self._pending is None:
            raise LoopError(
                f"commit({stop}) was called without a span; expected one commit for each span. Call next_span() first."
            )
        if stop != self._pending:
            raise LoopError(
                f"stop is {stop}; expected {self._pending}, the end of the span from {self.cursor}. Call "
                f"commit({self._pending}), or take another span with next_span() first."
            )
        self.samples += self._pending - self.cursor
        self.cursor, self._pending = self._pending, None

    def next_epoch(self) -> None:
        """Start the next epoch; the rest of this one is left unread."""
        self._begin(self.epoch + 1)

    def state_dict(self) -> dict[str, int]:
        """All that is needed to continue from the last commit, on any number of replicas: plain ints."""
        return {
            "seed": self._seed,
            "epoch": self.epoch,
            "cursor": self.cursor,
            "samples": self.samples,
            "length": self.length,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; on an error the ledger stays as it was.

        Raises ``DataError`` if the epoch's length has changed, ``CheckpointError`` if the state was written with
        another seed or not by a ledger.
        """
        try:
            seed, epoch, cursor, samples, length = (whole_number(state[name], name=name, at_least=0) for name in _STATE)
        except (KeyError, TypeError, ConfigError) as error:
            raise CheckpointError(
                f"the state is not a ledger's ({error}); expected whole numbers for {', '.join(_STATE)}. Load what "
                "state_dict() returned, from a complete checkpoint."
            ) from error
        if seed != self._seed:
            raise CheckpointError(
                f"seed is {self._seed}; expected {seed}, the seed of the checkpoint, because samples would be read "
                f"twice or never in another order. Give seed={seed} to continue, or start a new run."
            )
        present = self._epoch_length(epoch)
        if present != length:
            raise DataError(
                f"epoch {epoch} has {present} samples; expected {length}, as when the checkpoint was written, because "
                f"samples would be read twice or never. Give the data set of {length} samples to continue, or start a "
                "new run."
            )
        if cursor > length or cursor > samples:
            raise CheckpointError(
                f"the checkpoint has {cursor} samples of epoch {epoch} committed and {samples} in all; expected at "
                f"most the epoch's {length}, and in all no fewer than in one epoch. It is damaged: load an older one."
            )
        self.epoch, self.length, self.cursor, self.samples, self._pending = epoch, length, cursor, samples, None

    def _begin(self, epoch: int) -> None:
        self.length = self._epoch_length(epoch)
        self.epoch = epoch
        self.cursor = 0
        self._pending: int | None = None

    def _epoch_length(self, epoch: int) -> int:
        length = whole_number(self._length_of(epoch), name="length", at_least=0)
        if length == 0:
            raise DataError(f"epoch {epoch} has no samples; expected at least 1. Give another data set.")
        return length
