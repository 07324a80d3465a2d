"""Epochs that go on where a restarted run stands."""

from __future__ import annotations

from collections.abc import Iterator

from swell.compat.adaptdl.session import Session, session
from swell.errors import LoopError


def remaining_epochs_until(epoch: int) -> Iterator[int]:
    """The number of each epoch below ``epoch`` that is not finished; loops may follow one another, not be nested.

    An epoch is finished when its body is: one that was left by ``break``, an exception or a preemption is not, and is
    gone on with by the next loop or the next start. Loader loops of it that were through are not run again.
    """
    here = session()
    if here.in_epoch:
        raise LoopError(
            "remaining_epochs_until was called inside another loop over epochs. Finish that one first; loops may "
            "follow one another."
        )
    _prepare(here)
    try:
        while here.epoch < epoch:
            sums = f"adaptdl-accumulator-epoch{here.epoch}-"
            if here.states.lives(sums):  # the epoch was left and is gone on with
                here.together(here.merge_sums)
                here.states.retire(sums)
                here.accumulators = [each for each in here.accumulators if each.epoch != here.epoch]
            here.in_epoch, here.entered_loops, here.created = True, 0, 0
            yield here.epoch
            _finish(here)
    finally:
        here.in_epoch = False
    here.save()
    if here.notices is not None and here.job is not None:
        here.job.engine.peers.stop_listening()  # after training, signals mean what they did before


def _prepare(here: Session) -> None:
    training = here.known_training()
    if training is not None and here.models:
        job = here.start(training)
        if here.notices is not None and here.folder is not None and not job.engine.rehearsal.rehearses:
            here.notices.install()


def _finish(here: Session) -> None:
    here.states.forget(f"adaptdl-accumulator-epoch{here.epoch}-")
    here.accumulators = [each for each in here.accumulators if each.epoch is None]
    for each in here.accumulators:
        each.end_epoch()
    here.epoch += 1
    here.finished_loops = here.index = 0
    here.in_epoch = False


def current_epoch() -> int | None:
    """The epoch under way; None outside a loop over :func:`remaining_epochs_until`."""
    return session().epoch if session().in_epoch else None


def finished_epochs() -> int:
    """How many epochs are finished, over all restarts."""
    return session().epoch
