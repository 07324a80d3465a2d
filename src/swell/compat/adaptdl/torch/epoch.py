"""Epochs that go on where a restarted run stands."""

from __future__ import annotations

from collections.abc import Iterator

from swell.compat.adaptdl.session import Session, current_session
from swell.errors import LoopError


def remaining_epochs_until(epoch: int) -> Iterator[int]:
    """The number of each epoch below ``epoch`` that is not finished; loops may follow one another, not be nested.

    An epoch is finished when its body is: one that was left by ``break``, an exception or a preemption is not, and is
    gone on with by the next loop or the next start. Loader loops of it that were through are not run again.
    """
    session = current_session()
    if session.place.in_epoch:
        raise LoopError(
            "remaining_epochs_until was called inside another loop over epochs. Finish that one first; loops may "
            "follow one another."
        )
    _prepare(session)
    try:
        while session.place.epoch < epoch:
            sums = f"adaptdl-accumulator-epoch{session.place.epoch}-"
            if session.states.lives(sums):  # the epoch was left and is gone on with
                session.together(session.merge_sums)
                session.states.retire(sums)
                session.accumulators = [each for each in session.accumulators if each.epoch != session.place.epoch]
            session.place.begin_epoch()
            yield session.place.epoch
            _finish(session)
    finally:
        session.place.in_epoch = False
    session.save()
    if session.notices is not None and session.job is not None:
        session.job.engine.peers.stop_listening()  # after training, signals mean what they did before


def _prepare(session: Session) -> None:
    training = session.known_training()
    if training is not None and session.models:
        job = session.start(training)
        if session.notices is not None and session.folder is not None and not job.engine.rehearsal.rehearses:
            session.notices.install()


def _finish(session: Session) -> None:
    session.states.forget(f"adaptdl-accumulator-epoch{session.place.epoch}-")
    session.accumulators = [each for each in session.accumulators if each.epoch is None]
    for each in session.accumulators:
        each.end_epoch()
    session.place.end_epoch()


def current_epoch() -> int | None:
    """The epoch under way; None outside a loop over :func:`remaining_epochs_until`."""
    return current_session().place.epoch if current_session().place.in_epoch else None


def finished_epochs() -> int:
    """How many epochs are finished, over all restarts."""
    return current_session().place.epoch
