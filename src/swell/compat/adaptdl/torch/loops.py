"""Loops over loaders: which one trains, how it continues after a restart, how the others share their samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from swell.compat.adaptdl.members import Loader
from swell.compat.adaptdl.session import Session, current_session
from swell.compat.adaptdl.torch.loop_length import Tally, target_of
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
    """Around a loop over a loader, of which one may run at a time; its end and a ``break`` count as done."""
    session = current_session()
    if session.current is not None:  # nothing was changed yet, so the outer loop can go on
        raise LoopError(
            "a loop over an AdaptiveDataLoader began inside another one; expected one loop after the other, because a "
            "restart could not find its place in both. Finish the outer loop first."
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
    """The training step whose batch the user's loop has; None outside the training loop."""
    job = current_session().job
    return None if job is None else job.engine.steps.current


# Training


def training_loop(helper: Loader, tally: Tally) -> Iterator[Any]:
    """The batches of one pass; with autoscaling, of as many samples as make the progress of an epoch."""
    session = current_session()
    job = session.start(helper)
    place, engine = session.place, job.engine
    if place.enter_loop():
        return
    with only_loop(helper):
        tally.begin()
        if helper.max_batch_size is not None:
            engine.horizon.target = target_of(session, job)
        elif place.early_exit is not None and place.early_exit != place.epoch:
            engine.committer.end_epoch(complete=False)  # an earlier epoch was left early; this one has its own pass
        place.early_exit = None
        try:
            while True:
                yield from _training_batches(session, job, tally)
                if engine.planner.complete:
                    engine.committer.end_epoch(complete=True)
                if engine.horizon.target is None or engine.horizon.reached(job.progress):
                    break
            tally.last_epoch = place.epoch if place.in_epoch else None
        except GeneratorExit:
            place.early_exit = place.epoch if place.in_epoch else None
            raise
        finally:
            engine.horizon.target, tally.under_way = None, False


def _training_batches(session: Session, job: Job, tally: Tally) -> Iterator[Any]:
    """The job's batches; after each one, a check that the user's loop has stepped the optimizer."""
    samples, overflows = job.samples, 0
    for batch in _job_batches(session, job):
        step = job.engine.steps.current
        if job.samples > samples:
            samples, overflows = job.samples, 0
        for model in session.models:
            model.clipping.begin()
        tally.batches += 1
        yield batch
        if step is not None and not step.ended and not step.taken and step.spoiled is None:
            overflows += 1
            if overflows > MAX_OVERFLOWS or not any(model.mp_scaler is not None for model in session.models):
                raise LoopError(
                    "the loop asked for the next batch, but optimizer.step() was not called for the last one; expected "
                    "loss.backward() and optimizer.step() for every batch, also while gradients accumulate. Call them, "
                    "or use torch.no_grad() or model.eval() to evaluate."
                )
            job.redo()  # the gradient scaler found an overflow and skipped the step: its samples come again


def _job_batches(session: Session, job: Job) -> Iterator[Any]:
    """The job's batches; between them the job may step the optimizer of a replica without samples."""
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
    """The data of a loader that does not train, fetched ahead."""

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
            share = plan_remainder(count, replicas).shares[rank]
            yield start + count, [Span(epoch, start + m.offset, start + m.offset + m.size) for m in share]
            start += count

    def fetch(self, span: Span, stop: int, replicas: int, rank: int) -> Any:
        """One batch; the next ones are fetched ahead."""
        later = self.rounds(span.epoch, stop, replicas, rank)
        return self._feed.fetch(span, lambda: (span for _, spans in later for span in spans))


def evaluation_plan(count: int) -> Plan:
    """How a global batch of an evaluation loop is split."""
    return plan_remainder(count, current_session().collective.size)


def evaluation_loop(helper: Loader, data: Evaluation) -> Iterator[Any]:
    """Every sample once, on one replica; a resumed loop continues after the last global batch that was done."""
    session = current_session()
    known = session.known_training()
    if known is not None and session.models:
        session.start(known)  # a resumed run needs its weights before it is evaluated
    place = session.place
    if place.enter_loop():
        return
    with only_loop(helper):
        loops = place.ended_loops
        session.sums.settle(keep=True)  # additions before the loop count, whatever happens in it
        while place.ended_loops == loops:  # it rises here if other replicas finished while this one was cut off
            replicas, rank = session.collective.size, session.collective.rank
            stop, spans = next(data.rounds(place.epoch, place.index, replicas, rank), (None, []))
            if stop is None:
                break
            for span in spans:
                yield data.fetch(span, stop, replicas, rank)
            session.end_evaluated_batch(stop)
