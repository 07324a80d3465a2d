"""Epochs that continue where the run is after a restart."""

from __future__ import annotations

from collections.abc import Iterator

from swell.compat.adaptdl.session import Session, current_session
from swell.errors import LoopError


def remaining_epochs_until(epoch: int) -> Iterator[int]:
    """The number of each unfinished epoch below ``epoch``; loops may follow one another, but not be nested.

    An epoch is finished when its body is. If the body was left by ``break``, an exception or a preemption, the next
    loop or the next start continues the epoch, without the loader loops that were done.
    """
    session = current_session()
    if session.place.in_epoch:
        raise LoopError(
            "remaining_epochs_until was called inside another loop over epochs; expected one loop after the other. "
            "Finish the outer loop first."
        )
    _prepare(session)
    try:
        while session.place.epoch < epoch:
            prefix = f"adaptdl-accumulator-epoch{session.place.epoch}-"
            if session.states.has_live(prefix):  # the epoch was left early and continues
                session.together(session.merge_sums)
                session.states.retire(prefix)
                session.sums.retire(session.place.epoch)
            session.place.begin_epoch()
            yield session.place.epoch
            session.states.forget(f"adaptdl-accumulator-epoch{session.place.epoch}-")
            session.sums.end_epoch()
            session.place.end_epoch()
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


def current_epoch() -> int | None:
    """The epoch under way; None outside a loop over :func:`remaining_epochs_until`."""
    return current_session().place.epoch if current_session().place.in_epoch else None


def finished_epochs() -> int:
    """The number of finished epochs, over all restarts."""
    return current_session().place.epoch
