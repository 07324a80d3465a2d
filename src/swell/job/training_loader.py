"""The loader a user iterates: one micro-batch of the current plan at a time, step after step, to the epoch's end."""

from __future__ import annotations

import inspect
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch

from swell.core.events import Warned
from swell.core.ledger import Ledger
from swell.core.types import Plan
from swell.data.feed import Feed
from swell.data.loader_options import LoaderOptions
from swell.data.orders import Orders
from swell.data.span import Span
from swell.data.stream import OwnStream, Stream
from swell.errors import ConfigError, LoadError
from swell.job.checks import check_options
from swell.loop.step import StepInProgress
from swell.runtime.faults import FailingSamples, read_faults

if TYPE_CHECKING:
    from swell.job.job import Job


MOST_LOSSES = 3  # of data-loading processes at one batch, before that counts as an error
UNKNOWN_LENGTH = 2**62  # what the ledger counts up to where a stream's end is not known
ORDERING = {"shuffle", "drop_last", "weights", "order", "sampler"}  # options of job.loader itself


class Source(Protocol):
    """Where batches come from: a feed over a data set, or a stream."""

    def fetch(self, span: Span, upcoming: Callable[[], Iterator[Span]]) -> Any: ...

    def close(self) -> None: ...


class TrainingLoader:
    """Yields this replica's micro-batches; made by :meth:`swell.Job.loader`.

    It may be iterated once an epoch. Leaving the loop early discards only the step under way; iterating again within
    the epoch goes on from the first sample that was not committed.
    """

    def __init__(
        self, job: Job, source: Source, ledger: Ledger, *, drop_last: bool, failing: FailingSamples | None = None
    ) -> None:
        self._job, self._source, self.ledger = job, source, ledger
        self._drop_last = drop_last
        self._failing = failing

    def __iter__(self) -> Iterator[Any]:
        job = self._job
        job._enter_loop()
        try:
            while (step := job._begin_step()) is not None:
                if self._failing is not None:
                    self._failing.place.copy_(torch.tensor([job.rank, job.steps]))
                for index in range(len(step.mine)):
                    batch = self._fetch(step, index)
                    job.metrics.muted = step.hand_out(index).weight == 0
                    yield batch
                    job.metrics.muted = False
                    step.require_finished()
                    if step.ended or step.spoiled is not None:
                        break
                job._end_step(step)
        finally:
            job._leave_loop()

    def _fetch(self, step: StepInProgress, index: int) -> Any:
        """A micro-batch; asked for again where the process that was to load it is lost, a few times in a row."""
        for attempt in range(MOST_LOSSES + 1):
            try:
                return self._source.fetch(self._span(step, index), lambda: self._upcoming(step, index))
            except LoadError as error:
                if not error.lost or attempt == MOST_LOSSES:
                    raise
                self._job._emit(Warned(time=time.time(), message=f"data is loaded again: {error}"))
        raise AssertionError("not reached")

    @property
    def epoch_size(self) -> int | None:
        """Samples of an epoch; None for a stream, whose end nobody knows."""
        return None if self.ledger.length == UNKNOWN_LENGTH else self.ledger.length

    def next_span(self, batch: int) -> tuple[int, int] | None:
        """The positions of the next step, at most ``batch`` of them; None at the end of the epoch."""
        if not isinstance(self._source, (Stream, OwnStream)):
            return self.ledger.next_span(batch)
        if self._source.shared or self._job.replicas == 1:
            there = self._source.available(self.ledger.epoch, self.ledger.cursor, batch)
        else:
            # Each replica takes its share from a stream of its own; the step is made only if all of them can.
            plan = self._job._pace.lay_out(batch, batch, replicas=self._job.replicas, split=False)
            share = plan.share_sizes()[self._job.rank]
            has = self._source.available(self.ledger.epoch, self.ledger.cursor, share) >= share
            there = batch if all(row[0] for row in self._job.collective.gather_numbers([float(has)])) else 0
        if there == 0 or (self._drop_last and there < batch):
            return None
        return self.ledger.next_span(min(there, batch))

    def __len__(self) -> int:
        """Micro-batches this replica would still get in this epoch if the batch stayed; after its end, in the next."""
        if self.epoch_size is None:
            raise TypeError("a stream has no length: nobody knows where it ends before it does.")
        position = 0 if self._job._stepping.through else self.ledger.cursor
        return sum(1 for _ in self._remaining(position, self._job._planned()))

    def _span(self, step: StepInProgress, index: int) -> Span:
        micro = step.mine[index]
        start = step.start + micro.offset
        return Span(step.epoch, start, start + micro.size)

    def _upcoming(self, step: StepInProgress, index: int) -> Iterator[Span]:
        """What this replica will need after micro-batch ``index`` if the plan stays as it is."""
        for later in range(index + 1, len(step.mine)):
            yield self._span(step, later)
        if self.epoch_size is not None:
            yield from self._remaining(step.stop, step.plan)

    def _remaining(self, position: int, plan: Plan) -> Iterator[Span]:
        rank, size, length = self._job.rank, plan.global_batch, self.ledger.length
        while position + size <= length:
            for micro in plan.shares[rank]:
                yield Span(self.ledger.epoch, position + micro.offset, position + micro.offset + micro.size)
            position += size
        if position < length and not self._drop_last:
            tail = self._job._tail_plan(length - position)
            for micro in tail.shares[rank]:
                yield Span(self.ledger.epoch, position + micro.offset, position + micro.offset + micro.size)

    def state_dict(self) -> dict[str, Any]:
        """What a stream that all replicas read keeps of its own; empty for anything else, which needs none."""
        return self._source.state_dict() if isinstance(self._source, Stream) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the stream go on from there."""
        if state and isinstance(self._source, Stream):
            self._source.load_state_dict(state)

    def close(self) -> None:
        """Stop the data-loading workers."""
        self._source.close()


def feed_loader(
    job: Job, dataset: Any, order_of: Orders, *, seed: int, drop_last: bool, **loading: Any
) -> TrainingLoader:
    """The loader over a map-style data set."""
    check_options(loading, ORDERING | _options(Feed) | _options(LoaderOptions))
    ledger = Ledger(lambda epoch: len(order_of(epoch)), seed=seed, drop_last=drop_last)
    # Of its own, so that starting data workers draws nothing from the user's random numbers.
    own = torch.Generator().manual_seed(zlib.crc32(f"{seed} {job.rank}".encode()))
    failing = None
    if (faults := read_faults()).plans("load"):
        dataset = failing = FailingSamples(dataset, faults)
    source = Feed(dataset, order_of, **{"generator": own, **loading})
    return TrainingLoader(job, source, ledger, drop_last=drop_last, failing=failing)


def stream_loader(
    job: Job, dataset: Any, *, seed: int, drop_last: bool, split: str = "replicas", **loading: Any
) -> TrainingLoader:
    """The loader over an iterable data set: every replica reads it all, or (``split="dataset"``) a part of its own."""
    if split not in ("replicas", "dataset"):
        raise ConfigError(f"split={split!r} is not known; expected 'replicas' or 'dataset'.")
    check_options(loading, {"drop_last", "split"} | _options(LoaderOptions))
    source = Stream(dataset, **loading) if split == "replicas" else OwnStream(dataset, **loading)
    return TrainingLoader(job, source, Ledger(UNKNOWN_LENGTH, seed=seed), drop_last=drop_last)


def _options(source: type) -> set[str]:
    parameters = inspect.signature(source).parameters.values()
    return {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
