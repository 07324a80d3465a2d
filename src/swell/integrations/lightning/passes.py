"""The job's epochs and loader, driven by Lightning's loops, which ask for one batch after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from swell.core.protocols import FinitePolicy
from swell.integrations.lightning.loops import Loops
from swell.job import Job
from swell.job.loader import TrainingLoader
from swell.policies import find

ENDLESS = 1_000_000  # epochs, where only steps or time end a run
_END = object()


class Passes:
    """What Lightning goes through as its training loader: in each epoch, this worker's micro-batches.

    Its length is that of a loader of the base batch, so schedules that are made of it mean the same on any workers.
    """

    def __init__(self, job: Job, loader: TrainingLoader, loops: Loops) -> None:
        self._job, self._loader, self._loops = job, loader, loops
        self._epochs: Iterator[int] = iter(())
        self._pass: Iterator[Any] | None = None  # over the epoch's batches
        self._ahead: list[Any] = []  # a batch that was asked for before Lightning did
        self.over = False  # whether the run was ended
        self._ends_unseen = loader.drop_last or find(job.engine.state.pace.policy, FinitePolicy) is not None

    def begin(self) -> None:
        """Join the run: resume it, or take over the other workers' state.

        Where all samples of the epoch were used, it begins with the next one: Lightning's callbacks look for figures at
        the end of an epoch, and this worker has none of that one.
        """
        self._epochs = self._job.epochs(self._loops.max_epochs or ENDLESS)
        more = next(self._epochs, _END)
        while more is not _END and self._loader.samples.done == self._loader.samples.total:
            self._pass = iter(self._loader)
            self._end_pass()
            more = next(self._epochs, _END)
        self._loops.enter(epoch=self._job.engine.state.ledger.epoch, steps=self._job.steps)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)

    def __iter__(self) -> Iterator[Any]:
        if self._pass is not None:  # of the epoch before, whose hooks are done by now
            self._end_pass()
            if next(self._epochs, _END) is _END:  # the policy, or the other workers, ended the run
                self._loops.stop()
                return
        self._pass = iter(self._loader)
        while (batch := self._next()) is not _END:
            self._loops.hand_out()
            yield batch

    def _next(self) -> Any:
        assert self._pass is not None
        return self._ahead.pop() if self._ahead else next(self._pass, _END)

    def finish_batch(self, *, stepped: bool) -> None:
        """The job has done with a batch: tell the loops whether it was a step's last, and the epoch's.

        The epoch's last step may have no sample for this worker, or not be made at all. Then what comes is asked for
        here, because Lightning validates after a batch only.
        """
        done, total = self._loader.samples
        assert total is not None
        last = stepped and done == total
        if stepped and not last and (self._ends_unseen or total - done < self._job.replicas):
            batch = self._next()
            last = batch is _END
            self._ahead = [] if last else [batch]
        self._loops.finish_batch(stepped=stepped, last=last, steps=self._job.steps)

    def _end_pass(self) -> None:
        """Let the job do what follows an epoch's last step; a pass that was left early is only left."""
        done, total = self._loader.samples
        if self._pass is not None and done == total:
            next(self._pass, None)
        elif isinstance(self._pass, Iterator) and hasattr(self._pass, "close"):
            self._pass.close()  # pyright: ignore[reportAttributeAccessIssue]
        self._pass, self._ahead = None, []

    def end(self) -> None:
        """Lightning trains no more: end the run, which saves it."""
        self.over = True
        complete = self._loader.samples.done == self._loader.samples.total
        self._end_pass()
        if complete and self._job.engine.state.ledger.epoch + 1 == self._loops.max_epochs:
            next(self._epochs, None)
        self._job.close()
