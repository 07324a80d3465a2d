"""The loader a user iterates: one micro-batch of the current plan at a time, step after step, to the epoch's end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from swell.core.ledger import Ledger
from swell.core.types import Plan
from swell.data.spans import Span
from swell.loop.step import StepInProgress

if TYPE_CHECKING:
    from swell.job.job import Job


class Source(Protocol):
    """Where batches come from: a feed over a data set, or a stream."""

    def fetch(self, span: Span, upcoming: Callable[[], Iterator[Span]]) -> Any: ...

    def close(self) -> None: ...


class TrainingLoader:
    """Yields this replica's micro-batches; made by :meth:`swell.Job.loader`.

    It may be iterated once an epoch. Leaving the loop early discards only the step under way; iterating again within
    the epoch goes on from the first sample that was not committed.
    """

    def __init__(self, job: Job, source: Source, ledger: Ledger, *, drop_last: bool) -> None:
        self._job, self._source, self.ledger = job, source, ledger
        self._drop_last = drop_last

    def __iter__(self) -> Iterator[Any]:
        job = self._job
        job._enter_loop()
        try:
            while (step := job._begin_step()) is not None:
                for index in range(len(step.mine)):
                    batch = self._source.fetch(self._span(step, index), lambda s=step, i=index: self._upcoming(s, i))
                    step.hand_out(index)
                    yield batch
                    step.require_finished()
                    if step.ended or step.spoiled is not None:
                        break
                job._end_step(step)
        finally:
            job._leave_loop()

    def __len__(self) -> int:
        """Micro-batches this replica would still get in this epoch if the batch stayed as it is."""
        return sum(1 for _ in self._remaining(self.ledger.cursor, self._job._planned()))

    def _span(self, step: StepInProgress, index: int) -> Span:
        micro = step.mine[index]
        start = step.start + micro.offset
        return Span(step.epoch, start, start + micro.size)

    def _upcoming(self, step: StepInProgress, index: int) -> Iterator[Span]:
        """What this replica will need after micro-batch ``index`` if the plan stays as it is."""
        for later in range(index + 1, len(step.mine)):
            yield self._span(step, later)
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

    def close(self) -> None:
        """Stop the data-loading workers."""
        self._source.close()
