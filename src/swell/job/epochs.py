"""The outer loop of a run: a number of epochs, or one after another until enough was learnt."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from numbers import Real
from typing import Any

from swell.core.counts import whole_number
from swell.core.early_stopping import EarlyStopping
from swell.core.events import EpochStarted, Event, RunStarted, Satisfied, Warned
from swell.errors import ConfigError, LoopError
from swell.job.committer import Committer
from swell.job.horizon import Horizon
from swell.job.peers import Peers
from swell.job.planner import Planner
from swell.job.recovery import Recovery
from swell.job.run_state import RunState
from swell.runtime.machine import describe_machine
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
        self._reads = 0  # of the metrics, when the turn under way began
        self.begun = self.over = False  # whether the log has the run's start, and its end

    def count(self, count: int) -> Iterator[int]:
        """Each epoch below ``count`` that is not done yet."""
        count = whole_number(count, name="epochs")
        self._horizon.epochs, self._horizon.target = count, None
        ledger = self._state.ledger
        self._begin()
        while ledger.epoch < count and not self._planner.finished:
            yield from self._epoch(epochs=count)
        self._finish()

    def endless(self) -> Iterator[int]:
        """One epoch after another, for facades whose script counts them itself; the length of the run is not known."""
        self._horizon.epochs = self._horizon.target = None
        self._begin()
        while not self._planner.finished:
            yield from self._epoch(epochs=None)
        self._finish()

    def until(
        self, *, steps: float | None, epochs: float | None, stopping: EarlyStopping | None = None
    ) -> Iterator[int]:
        """One epoch after another until the progress is there, or a metric says that it is enough."""
        value = steps if steps is not None else epochs
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if (steps is None) == (epochs is None) or value is None or not is_number or not value > 0:
            raise ConfigError(
                f"steps is {steps!r} and epochs is {epochs!r}; expected one of them, above 0. Call for example "
                f"job.until(steps=10_000)."
            )
        size = self._state.data.epoch_size
        if steps is None and size is None:
            raise ConfigError(
                f"epochs is {epochs!r}; expected steps, because the length of a stream is not known. Give the length "
                f"of the run in base steps: job.until(steps=...)."
            )
        of_epoch = self._state.ledger.base_steps_of_epoch(self._state.pace.base)
        self._horizon.epochs = epochs
        self._horizon.target = value if steps is not None else value * of_epoch
        self._state.stopping = stopping
        self._begin()
        while not self._is_over(stopping):
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

    def _is_over(self, stopping: EarlyStopping | None) -> bool:
        """Whether no turn is left; one that was under way when this replica joined or resumed is made to its end.

        Its last step may be done, but not what the other replicas do together after it.
        """
        if self._state.ledger.cursor > 0:
            return False
        enough = stopping is not None and stopping.over
        return enough or self._horizon.reached(self._state.pace.progress) or self._planner.finished

    def _end_epoch(self, *, complete: bool) -> None:
        """End the epoch on all replicas, and judge by what its body reported; each has the same metrics."""
        state, stopping = self._state, self._state.stopping
        if stopping is not None:
            value = state.metrics.latest(stopping.metric, since=self._reads)
            reason = None if value is None else stopping.judge(value)
            if value is None:
                message = (
                    f"metric is {stopping.metric!r}, and this turn of job.until reported none of that name; expected "
                    f"job.metrics.mean({stopping.metric!r}, ...) in it. The run goes on."
                )
                self._emit(Warned(time=time.time(), message=message))
            elif reason is not None:
                figures = {"metric": stopping.metric, "value": value, "best": stopping.best, "reason": reason}
                self._emit(Satisfied(time=time.time(), step=state.steps, **figures))
        self._committer.end_epoch(complete=complete)

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
                settings=self._settings(),
                machine=describe_machine(self._peers.device),
            )
        )
        if state.marks.body_done:
            for learner in state.learners:  # stepped in an earlier process; schedulers warn where they see no step
                learner.optimizer._opt_called = True  # type: ignore[attr-defined]
            cut_short = self._horizon.reached(state.pace.progress) and state.ledger.remaining > 0
            self._end_epoch(complete=not cut_short)

    def _settings(self) -> dict[str, Any]:
        """The settings of the run, for its report."""
        state = self._state
        given = dict(line.split("=", 1) for line in state.settings.splitlines() if "=" in line)
        models = [learner.model for learner in state.learners]
        return {
            **given,
            "optimizer": ", ".join(type(learner.optimizer).__name__ for learner in state.learners),
            "parameters": sum(parameter.numel() for model in models for parameter in model.parameters()),
            "epoch_size": state.data.epoch_size,
            "worth_power": state.learners[0].worth_power if state.learners else 1.0,
        }

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
        self._reads = state.metrics.reads
        self._planner.begin_turn()
        yield epoch
        self._planner.end_turn()
        if ledger.epoch == epoch:  # otherwise this replica has the state of others that have ended it
            self._end_epoch(complete=self._planner.complete)
