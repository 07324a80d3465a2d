"""The outer loop of a run: a number of epochs, or one after another until enough was learnt."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from numbers import Real

from swell.core.counts import whole_number
from swell.core.events import EpochStarted, Event, RunStarted
from swell.errors import ConfigError, LoopError
from swell.job.committer import Committer
from swell.job.horizon import Horizon
from swell.job.peers import Peers
from swell.job.planner import Planner
from swell.job.recovery import Recovery
from swell.job.run_state import RunState
from swell.version import __version__


class Epochs:
    """Goes through the data again and again; ``finish`` saves the run and ends it when the loop is over."""

    def __init__(
        self,
        state: RunState,
        peers: Peers,
        horizon: Horizon,
        planner: Planner,
        committer: Committer,
        recovery: Recovery,
        *,
        emit: Callable[[Event], None],
        finish: Callable[[], None],
    ) -> None:
        self._state, self._peers, self._horizon, self._planner = state, peers, horizon, planner
        self._committer, self._recovery, self._emit, self._finish = committer, recovery, emit, finish
        self.begun = self.over = False  # whether the log has the run's start, and its end

    def count(self, count: int) -> Iterator[int]:
        """Each epoch below ``count`` that is not done yet."""
        self._horizon.epochs = whole_number(count, name="epochs")
        ledger = self._state.ledger
        self._begin()
        while ledger.epoch < self._horizon.epochs and not self._planner.finished:
            yield from self._epoch(epochs=self._horizon.epochs)
        self._finish()

    def until(self, *, steps: float | None, epochs: float | None) -> Iterator[int]:
        """One epoch after another until the progress is there."""
        value = steps if steps is not None else epochs
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if (steps is None) == (epochs is None) or value is None or not is_number or not value > 0:
            raise ConfigError(
                f"job.until was given steps={steps!r}, epochs={epochs!r}; expected one of them, above 0. Call for "
                f"example job.until(steps=10_000)."
            )
        size = self._state.data.epoch_size
        if steps is None and size is None:
            raise ConfigError(
                f"epochs is {epochs!r}; expected steps, because the length of a stream is not known. Give the length "
                f"of the run in base steps: job.until(steps=...)."
            )
        self._horizon.target = value if steps is not None else value * (size or 0) / self._state.pace.base
        self._begin()
        while not self._horizon.reached(self._state.pace.progress) and not self._planner.finished:
            passes, epoch = self._planner.passes, self._state.ledger.epoch
            for number in self._epoch(epochs=None):
                yield number
                if self._planner.passes == passes and self._state.ledger.epoch == epoch:
                    raise LoopError(
                        "a turn of job.until did not go through the training loader, so nothing was learnt and the "
                        "loop would never end. Put `for batch in loader:` inside it, with the loader that job.loader "
                        "returned."
                    )
        self._finish()

    def _begin(self) -> None:
        """Continue from where the run is; an epoch whose body was done when it was saved is ended first."""
        self._planner.set_window()
        self._recovery.join()
        self.begun, self.over = True, False
        state = self._state
        self._emit(
            RunStarted(
                time=time.time(),
                version=__version__,
                replicas=self._peers.size,
                base_batch=state.pace.base,
                policy=repr(state.pace.policy),
                rule=", ".join(repr(learner.rule) for learner in state.learners),
                seed=state.seed,
                samples=state.samples,
            )
        )
        if state.marks.body_done:
            for learner in state.learners:  # stepped in an earlier process; schedulers warn where they see no step
                learner.optimizer._opt_called = True  # type: ignore[attr-defined]
            self._committer.end_epoch(complete=True)

    def _epoch(self, *, epochs: int | None) -> Iterator[int]:
        """One turn of the loop, and what follows its body."""
        state, ledger, horizon = self._state, self._state.ledger, self._horizon
        epoch, size = ledger.epoch, self._state.data.epoch_size
        self._emit(
            EpochStarted(
                time=time.time(),
                epoch=epoch,
                samples=state.samples,
                epoch_size=size,
                epochs=epochs,
                total_samples=horizon.total_samples(base_batch=state.pace.base, epoch_size=size),
                total_progress=horizon.target,
            )
        )
        yield epoch
        if ledger.epoch == epoch:  # otherwise this replica has the state of others that have ended it
            self._committer.end_epoch(complete=self._planner.complete)
