"""The loader a user iterates: one micro-batch of the current plan at a time, step after step, to the epoch's end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch.utils.data import default_collate

from swell.core.events import Event, Warned
from swell.data.epoch_sampler import EpochSampler
from swell.data.loader_options import LoaderOptions
from swell.data.span import Span
from swell.errors import LoadError, LoopError, WorldError
from swell.job.boundary import Boundary, Hooks
from swell.job.compiled_models import halves_of_compiled
from swell.job.planner import Chosen, Planner
from swell.job.recovery import Recovery
from swell.job.run_state import RunState
from swell.job.steps import Steps
from swell.loop.step import StepInProgress

MOST_LOSSES = 3  # of data-loading processes at one batch, before that counts as an error


class EpochSamples(NamedTuple):
    """How far an epoch is, in samples of all replicas."""

    done: int
    total: int | None  # None for a stream, whose end is not known


class TrainingLoader:
    """Yields this replica's micro-batches; made by :meth:`swell.Job.loader`.

    It may be iterated once an epoch. Leaving the loop early discards only the step under way; iterating again within
    the epoch continues with the first sample that was not committed.

    For scripts that look at their ``DataLoader`` it has what a loader of the base batch would have: its length, the
    data set, ``batch_size``, ``sampler``, ``drop_last`` and the options that ``job.loader`` was given.
    """

    def __init__(
        self,
        state: RunState,
        planner: Planner,
        steps: Steps,
        boundary: Boundary,
        recovery: Recovery,
        *,
        hooks: Hooks,
        emit: Callable[[Event], None],
        require_ready: Callable[[], None],
    ) -> None:
        self._state, self._planner, self._steps = state, planner, steps
        self._boundary, self._recovery, self._hooks = boundary, recovery, hooks
        self._emit, self._require_ready = emit, require_ready

    def __iter__(self) -> Iterator[Any]:
        self._require_ready()
        self._recovery.join()
        if self._planner.through:
            raise LoopError(
                f"every sample of epoch {self._state.ledger.epoch} was used already, so the loader would give nothing. "
                "Go through it once in each turn of `for epoch in job.epochs(n)`, or of job.until(steps=n) where the "
                "loop counts steps; each turn begins the next epoch."
            )
        with self._steps.looping():
            self._planner.begin_pass()
            while (chosen := self._choose()) is not None:
                step = self._steps.open(chosen)
                self._state.data.announce(rank=step.rank, step=self._state.steps)
                if step.split:
                    with halves_of_compiled():
                        yield from self._hand_out(step)
                else:
                    yield from self._hand_out(step)
                self._steps.close(step)
            if self._planner.in_pass:
                self._boundary.end_pass()

    def _choose(self) -> Chosen | None:
        """The next step; chosen again after a replica that was lost meanwhile."""
        self._require_ready()
        if self._hooks.before_step is not None:
            self._hooks.before_step()
        while True:
            try:
                self._boundary.settle(self._steps.take_signals())
                chosen = self._planner.next()
                break
            except WorldError as error:
                self._recovery.lost(error)
        if self._hooks.after_choice is not None:
            self._hooks.after_choice()
        return chosen

    def _hand_out(self, step: StepInProgress) -> Iterator[Any]:
        """The step's micro-batches on this replica, until it is over or cannot be finished."""
        metrics = self._state.metrics
        for index in range(len(step.mine)):
            yield self._load(step, index)  # in no variable here, so that a batch is free as soon as the user lets go
            metrics.muted = False
            step.require_finished()
            if step.ended or step.spoiled is not None:
                return

    def _load(self, step: StepInProgress, index: int) -> Any:
        """The micro-batch that the user holds next."""
        metrics, watched = self._state.metrics, self._steps.watched
        if watched:
            self._steps.mark("loading")
        began = time.perf_counter()
        batch = self._fetch(step, index)
        step.waited_s += time.perf_counter() - began
        if watched:
            self._steps.mark("training")
        micro = step.hand_out(index)
        step.left_out = self._state.data.left_out(batch, micro.size)
        metrics.muted, metrics.samples = micro.weight == 0, micro.size
        return batch

    def _fetch(self, step: StepInProgress, index: int) -> Any:
        """A micro-batch; asked for again, a few times in a row, where the process that loads it is lost."""
        for attempt in range(MOST_LOSSES + 1):
            try:
                return self._state.data.fetch(_span(step, index), lambda: self._upcoming(step, index))
            except LoadError as error:
                if not error.lost or attempt == MOST_LOSSES:
                    raise
                self._emit(Warned(time=time.time(), message=f"data is loaded again: {error}"))
        raise AssertionError("not reached")

    def _upcoming(self, step: StepInProgress, index: int) -> Iterator[Span]:
        """What this replica will need after micro-batch ``index`` if the plan stays as it is."""
        for later in range(index + 1, len(step.mine)):
            yield _span(step, later)
        if self._state.data.epoch_size is not None:
            yield from self._planner.spans_from(step.stop, step.plan)

    def close(self) -> None:
        """Stop the data-loading workers."""
        self._state.data.close()

    # What scripts read of a DataLoader

    def __len__(self) -> int:
        """Steps of an epoch at the base batch, whatever the batch is now: what ``len`` of a ``DataLoader`` says."""
        if self._state.data.epoch_size is None:
            raise TypeError("a stream has no length, because its end is not known before it is reached.")
        return self._state.ledger.base_steps_of_epoch(self._state.pace.base)

    @property
    def samples(self) -> EpochSamples:
        """Samples of this epoch: those committed by all replicas, and all of them. For a progress bar."""
        return EpochSamples(self._state.ledger.cursor, self._state.data.epoch_size)

    @property
    def dataset(self) -> Any:
        """The data set that ``job.loader`` was given."""
        return self._state.data.given.dataset

    @property
    def batch_size(self) -> int:
        """The base batch, of which ``len`` counts the steps; ``job.global_batch`` is the present batch."""
        return self._state.pace.base

    @property
    def drop_last(self) -> bool:
        """Whether the short step at the end of an epoch is left out."""
        return self._state.data.drop_last

    @property
    def sampler(self) -> EpochSampler | None:
        """The order of the present epoch over all replicas; None for a stream. Its ``set_epoch`` is not needed."""
        order_of = self._state.data.given.order_of
        return None if order_of is None else EpochSampler(order_of, lambda: self._state.ledger.epoch)

    @property
    def collate_fn(self) -> Callable[[list[Any]], Any]:
        """What makes a batch of samples."""
        return self._state.data.given.options.collate_fn or default_collate

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in LoaderOptions.__dataclass_fields__:
            raise AttributeError(
                f"the training loader has no {name!r}. Of a DataLoader's attributes it has len, dataset, batch_size, "
                f"sampler, drop_last, {', '.join(LoaderOptions.__dataclass_fields__)}."
            )
        return getattr(self._state.data.given.options, name)


def _span(step: StepInProgress, index: int) -> Span:
    micro = step.mine[index]
    start = step.start + micro.offset
    return Span(step.epoch, start, start + micro.size)
