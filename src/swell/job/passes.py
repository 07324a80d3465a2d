"""How often the data is gone through: a number of epochs, or until enough was learnt."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Real
from typing import TYPE_CHECKING

from swell.core.counts import whole_number
from swell.errors import ConfigError, LoopError

if TYPE_CHECKING:
    from swell.job.job import Job


class Passes:
    """The outer loop of a run; knows how long the run will be."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._epochs: int | None = None
        self.target: float | None = None  # base steps of progress at which training stops

    @property
    def reached(self) -> bool:
        """Whether enough was learnt."""
        return self.target is not None and self._job.progress >= self.target

    @property
    def total_samples(self) -> int | None:
        """Samples of the whole run at the base batch; None where the loop does not say."""
        if self.target is not None:
            return int(self.target * self._job._pace.base)
        size = self._job._training.epoch_size
        return None if self._epochs is None or size is None else self._epochs * size

    def epochs(self, count: int) -> Iterator[int]:
        """Each epoch below ``count`` that is not done yet."""
        self._job._require_open("job.epochs")
        self._epochs = whole_number(count, name="epochs")
        ledger = self._job._ledger
        self._begin()
        while ledger.epoch < self._epochs and not self._job._stepping.finished:
            self._job._announcer.epoch_started(epochs=self._epochs)
            epoch = ledger.epoch
            yield epoch
            self._end_epoch(epoch)
        self._finish()

    def until(self, *, steps: float | None, epochs: float | None) -> Iterator[int]:
        """One epoch after another until the progress is there."""
        self._job._require_open("job.until")
        given = steps if steps is not None else epochs
        number = isinstance(given, Real) and not isinstance(given, bool)
        if (steps is None) == (epochs is None) or given is None or not number or not given > 0:
            raise ConfigError(
                f"job.until(steps={steps!r}, epochs={epochs!r}): expected one of them, above 0. For example "
                f"job.until(steps=10_000)."
            )
        ledger, size = self._job._ledger, self._job._training.epoch_size
        if steps is None and size is None:
            raise ConfigError(
                "job.until(epochs=...) needs to know how long an epoch is, and a stream does not say. "
                "Give it in base steps: job.until(steps=...)."
            )
        self.target = given if steps is not None else given * (size or 0) / self._job._pace.base
        self._begin()
        while not self.reached and not self._job._stepping.finished:
            self._job._announcer.epoch_started(epochs=None)
            epoch, entered = ledger.epoch, self._job._stepping.entered
            yield epoch
            if self._job._stepping.entered == entered and ledger.epoch == epoch:
                raise LoopError(
                    "a turn of job.until did not go through the training loader, so nothing was learnt and it would go "
                    "on for ever. Put `for batch in loader:` inside it, with the loader that job.loader returned."
                )
            self._end_epoch(epoch)
        self._finish()

    def _begin(self) -> None:
        """Go on from where the run stands; an epoch whose body was through when it was saved is ended first."""
        job = self._job
        job._stepping.expect(self.total_samples)
        job._elasticity.join()
        job._announcer.run_started()
        if job._ending.done:
            for trainee in job._trainees:  # stepped in an earlier process; schedulers warn where they see no step
                trainee.optimizer._opt_called = True  # type: ignore[attr-defined]
            job._ending.end_epoch(job._ledger, complete=True)

    def _end_epoch(self, epoch: int) -> None:
        ledger = self._job._ledger
        if ledger.epoch == epoch:  # otherwise others have ended it, and handed that on when a replica was lost
            self._job._ending.end_epoch(ledger, complete=self._job._stepping.complete)

    def _finish(self) -> None:
        """The loop is over: nothing more will change, so save it as it is."""
        self._job.save()
        self._job._announcer.run_ended("finished")
        self._job._elasticity.leave()
