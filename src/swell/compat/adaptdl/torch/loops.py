"""Loops over loaders: which one trains, how it goes on after a restart, how the others share out their samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from swell.compat.adaptdl.members import Loader
from swell.compat.adaptdl.session import Session, current_session
from swell.compat.adaptdl.torch.extent import Tally
from swell.core.planning import plan_remainder
from swell.core.types import Plan
from swell.data.feed import Feed
from swell.data.orders import orders
from swell.data.span import Span
from swell.errors import LoopError
from swell.job import Job
from swell.job.committer import MAX_OVERFLOWS
from swell.loop.step import StepInProgress

_END = object()


def trains(helper: Loader) -> bool:
    """Whether the loop that begins now is for training."""
    session = current_session()
    known = session.known_training()
    if known is not None and known is not helper:
        return False
    return torch.is_grad_enabled() and any(model.module.training for model in session.models)


@contextmanager
def only_loop(helper: Loader) -> Iterator[None]:
    """Hold the place of the one loop that may run; it is done when its body ends, or is left by ``break``."""
    session = current_session()
    if session.current is not None:  # raised before anything is touched: the outer loop goes on unharmed
        raise LoopError(
            "a loop over an AdaptiveDataLoader began inside another one. Finish the outer loop first: after a restart "
            "nobody could tell how far both of them were."
        )
    session.current = helper
    try:
        yield
        session.place.end_loop()
    except GeneratorExit:
        session.place.end_loop()
        raise
    finally:
        session.current = None


def step_under_way() -> StepInProgress | None:
    """The training step whose batch is out; None outside the training loop."""
    job = current_session().job
    return None if job is None else job.engine.steps.current


# Training


def training_loop(helper: Loader, tally: Tally) -> Iterator[Any]:
    """The batches of one pass; with autoscaling, of as many samples as an epoch's progress takes."""
    session = current_session()
    job = session.start(helper)
    if session.place.enter_loop():
        return
    with only_loop(helper):
        engine = job.engine
        horizon, committer = engine.horizon, engine.committer
        tally.begin()
        if helper.max_batch_size is not None:
            worth = engine.state.ledger.length / helper.batch_size  # base steps of an epoch
            horizon.target = (session.place.epoch + 1) * worth if session.place.in_epoch else job.progress + worth
        elif session.place.left_in is not None and session.place.left_in != session.place.epoch:
            committer.end_epoch(complete=False)  # an earlier epoch was left early; this one begins anew
        session.place.left_in = None
        try:
            while True:
                yield from _watched(session, job, tally)
                if engine.planner.complete:
                    committer.end_epoch(complete=True)
                if horizon.target is None or horizon.reached(job.progress):
                    break
            tally.through_in = session.place.epoch if session.place.in_epoch else None
        except GeneratorExit:
            session.place.left_in = session.place.epoch if session.place.in_epoch else None
            raise
        finally:
            horizon.target, tally.under_way = None, False


def _watched(session: Session, job: Job, tally: Tally) -> Iterator[Any]:
    """The job's batches; notes after each whether what the user's loop should have done with it was done."""
    samples, redone = job.samples, 0
    for batch in _by_the_job(session, job):
        now = job.engine.steps.current
        if job.samples > samples:
            samples, redone = job.samples, 0
        for model in session.models:
            model.clipping.begin()
        tally.came += 1
        yield batch
        if now is not None and not now.ended and not now.taken and now.spoiled is None:
            redone += 1
            if redone > MAX_OVERFLOWS or not any(model.mp_scaler is not None for model in session.models):
                raise LoopError(
                    "the next batch was asked for, but optimizer.step() was not called for the one before. Call "
                    "loss.backward() and optimizer.step() for every batch: while gradients accumulate, the step is "
                    "made when its last batch is there. To evaluate, use torch.no_grad() or model.eval()."
                )
            job.redo()  # the gradient scaler found an overflow and skipped the step: its samples come again


def _by_the_job(session: Session, job: Job) -> Iterator[Any]:
    """The job's batches; while it gets the next one ready, it may step the optimizer of a replica without samples."""
    batches = iter(job.engine.loader)
    try:
        while True:
            with ExitStack() as stack:
                for model in session.models:
                    stack.enter_context(model.unpatched())
                batch = next(batches, _END)
            if batch is _END:
                return
            yield batch
    finally:
        batches.close()  # type: ignore[attr-defined]


# Evaluation


class Evaluation:
    """The data of a loader that does not train, and what fetches it ahead."""

    def __init__(
        self, dataset: Any, batch_size: int, *, shuffle: bool, drop_last: bool, loading: dict[str, Any]
    ) -> None:
        self.length, self.batch_size, self.drop_last = len(dataset), batch_size, drop_last
        self._feed = Feed(dataset, orders(dataset, shuffle=shuffle, seed=0), **loading)

    def rounds(self, epoch: int, start: int, replicas: int, rank: int) -> Iterator[tuple[int, list[Span]]]:
        """For each global batch: the position after it, and this replica's span of it, if it has one."""
        while start < self.length:
            count = min(self.batch_size, self.length - start)
            if count < self.batch_size and self.drop_last:
                return
            mine = plan_remainder(count, replicas).shares[rank]
            yield start + count, [Span(epoch, start + m.offset, start + m.offset + m.size) for m in mine]
            start += count

    def fetch(self, span: Span, stop: int, replicas: int, rank: int) -> Any:
        """One batch; those after it are fetched ahead."""
        later = self.rounds(span.epoch, stop, replicas, rank)
        return self._feed.fetch(span, lambda: (span for _, spans in later for span in spans))


def evaluation_plan(count: int) -> Plan:
    """How a global batch of an evaluation loop is split."""
    return plan_remainder(count, current_session().collective.size)


def evaluation_loop(helper: Loader, data: Evaluation) -> Iterator[Any]:
    """Every sample once, on one replica each; resumed after the last global batch that was through."""
    session = current_session()
    known = session.known_training()
    if known is not None and session.models:
        session.start(known)  # a restarted run must have its weights back before it is judged
    if session.place.enter_loop():
        return
    with only_loop(helper):
        ended = session.place.ended_loops
        for accumulator in session.accumulators:
            accumulator.settle(keep=True)  # added before the loop: it counts whatever happens in it
        while session.place.ended_loops == ended:  # others may have been through when this replica was cut off
            replicas, rank = session.collective.size, session.collective.rank
            stop, spans = next(data.rounds(session.place.epoch, session.place.index, replicas, rank), (None, []))
            if stop is None:
                break
            for span in spans:
                yield data.fetch(span, stop, replicas, rank)
            session.end_evaluated_batch(stop)
