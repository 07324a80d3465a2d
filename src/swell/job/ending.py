"""How a step ends: committed with its samples, done again, or passed over; and what waits for that moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from swell.core.events import BatchChanged, StepSkipped
from swell.core.ledger import Ledger
from swell.core.types import Factors, Observation
from swell.errors import LossError, WorldError
from swell.job.hints import Hints
from swell.job.records import StepRecord
from swell.job.rollback import Rollback
from swell.job.step_clock import Duration, StepClock
from swell.job.update import Outcome
from swell.loop.metrics import exchange, exchange_late
from swell.loop.step import StepInProgress
from swell.policies import observation_to_dict

if TYPE_CHECKING:
    from swell.job.job import Job

MAX_OVERFLOWS = 100  # a gradient scaler that halves as often as this started from nothing sensible


class Ending:
    """Moves the ledger, the counts, the schedules and the log when a step is over; remembers the latest step."""

    def __init__(self, job: Job, *, nonfinite: str) -> None:
        self._job, self._nonfinite = job, nonfinite
        self._record: StepRecord | None = None
        self._overflows = 0
        self._clock = StepClock(job.device)
        self._latest: Duration | None = None
        self.measured_at = 0  # samples at the last measured step
        self.factors: tuple[Factors, ...] = ()
        self.gain = 1.0
        self.first: Callable[[], None] | None = None  # done by all replicas before a save, a stop or another world
        self._waiting: Outcome | None = None
        self.rollback = Rollback()
        self._hints = Hints(job)
        self.units = 0  # updates of one optimizer and other things done together: who has more has come further
        self.partial: set[int] = set()  # optimizers that have stepped already in a step that is not committed
        self.partial_batch = 0  # the batch of that step
        self._closed = -1  # the epoch whose pass over the data was ended by all
        self.done = False  # whether the run was resumed from where the body of its epoch was through

    @property
    def last_s(self) -> float:
        """What the latest step took on this replica, 0 where there was none; others hear of it with the next vote."""
        return 0.0 if self._latest is None else self._latest.seconds

    def record(self) -> StepRecord:
        """The record of the step under way."""
        self._record = self._record or StepRecord(self._job._emit, nonfinite=self._nonfinite)
        return self._record

    def stepped(self, step: StepInProgress, number: int, outcome: Outcome, *, batch: int) -> None:
        """One optimizer's update is made; where the step breaks before the others' are, it is not made again."""
        step.stepped.add(number)
        self.rollback.release()
        self.units += 1
        self.partial, self.partial_batch = set(step.stepped), batch
        if number == min(step.stepped):  # the step is worth what it is for the first of them
            self.factors, self.gain = outcome.factors, outcome.gain

    def commit(
        self, step: StepInProgress, ledger: Ledger, outcome: Outcome, *, batch: int, seen: Observation | None
    ) -> None:
        """Count the step's samples as done, together with the update they made."""
        job, pace = self._job, self._job._pace
        job._elasticity.reach("commit")
        if len(job._trainees) > 1:
            exchange(job.metrics, job.collective, job.device)
        job.metrics.commit()
        before = ledger.samples
        ledger.commit(step.stop)
        step.ended, self._overflows = True, 0
        self.partial = set()
        if step.measured or step.paired:
            self.measured_at = ledger.samples
        if seen is not None and pace.differs(batch, seen):
            job._emit(
                BatchChanged(
                    time=time.time(),
                    step=pace.step,
                    before=pace.batch,
                    after=batch,
                    policy=repr(pace.policy),
                    seen=observation_to_dict(seen),
                    micro_before=None if pace.micro is None else seen.micro_batch,
                    micro_after=pace.micro,
                )
            )
        pace.timed(outcome.last_s)
        pace.committed(
            step.plan,
            batch=batch,
            samples=before,
            gain=self.gain,
            nodes=job._world.nodes,
            as_chosen=not step.split,
        )
        self._latest = self._clock.stop()
        target = job._passes.target
        moved = job._trains_at(pace.step - 1)
        for trainee in job._trainees:
            if trainee.schedule is not None and moved:
                trainee.schedule.advance(pace.progress if target is None else min(pace.progress, target))
        self._report(step, ledger, self._latest)
        self._hints.tell()
        self._waiting = outcome

    def settle(self) -> None:
        """Before the next step: do what waited until the user's own code after the last one was through.

        Only then is everything consistent, for that code belongs to the step: it moves a model average, adds to sums of
        its own, evaluates. So a save holds all of it, and newcomers, who begin with a step, find nothing under way that
        others do together. ``first`` may bring sums together beforehand.
        """
        job, outcome, self._waiting = self._job, self._waiting, None
        if outcome is not None:
            if outcome.noticed or outcome.due or outcome.pending:
                world = job.collective
                if self.first is not None:
                    self.first()
                job._elasticity.together(self.count_late)
                if job.collective is not world:  # a replica was lost in it; what is due still will be after a step
                    return
            job._keeper.poll()
            if job._rehearsal is not None:
                job._rehearsal.after_step(job)
            if outcome.noticed:
                job._elasticity.stop()
            elif outcome.due:
                job._keeper.save()
        if job._world.interim or (outcome is not None and outcome.pending and not outcome.noticed):
            job._elasticity.reform("workers joined or left")

    def begin(self) -> None:
        """A step begins: what it changes before its commit can be undone, and what is measured in it is its own."""
        self._clock.start()
        self.rollback.begin()
        self._job.metrics.begin_step()

    def count_late(self) -> None:
        """Count what the user's code added to the metrics after the latest step; all replicas do this together."""
        exchange_late(self._job.metrics, self._job.collective, self._job.device)

    def end_pass(self, epoch: int) -> None:
        """The loader has no more steps: all replicas count what was added after the last one, once."""

        def act() -> None:
            self.count_late()
            self._closed = epoch

        if self._closed != epoch:
            self._job._elasticity.together(act)

    def reformed(self) -> None:
        """Another world was formed: whatever waited for one has it."""
        self._waiting = None

    def recover(self, step: StepInProgress, error: WorldError) -> None:
        """A replica was lost in a step: form the world anew, then do the step again unless others had finished it.

        Where the loss cuts an exchange short, some replicas may have all of it and others not. The state of those that
        came further is then everybody's.
        """
        before = self._job.steps
        if not step.ended:
            self.rollback.undo()
        self._job._elasticity.recover(error)
        self.rollback.begin()
        if step.ended:
            return
        if self._job.steps > before:
            step.ended = True
            self.forget()
        else:
            self.abandon(step, str(error), redone=True)

    def _report(self, step: StepInProgress, ledger: Ledger, took: Duration) -> None:
        pace, record, self._record = self._job._pace, self._record, None
        noise = self._job.noise
        groups = self._job._trainees[0].optimizer.param_groups
        if record is None:  # the first optimizer rested, or had stepped before the step was done again
            record = StepRecord(self._job._emit, nonfinite=self._nonfinite)
            record.set_loss(None)
        record.set_committed(
            took,
            step=pace.step,
            epoch=ledger.epoch,
            samples=ledger.samples,
            global_batch=step.plan.global_batch,
            replicas=step.plan.replicas,
            micro_batch=step.plan.micro_batch,
            accumulation=step.plan.accumulation,
            lr=tuple(float(group["lr"]) for group in groups),
            lr_factor=tuple(factor.lr for factor in self.factors),
            gain=self.gain,
            progress=pace.progress,
            signal=None if noise is None else noise.total.signal,
            noise=None if noise is None else noise.total.noise,
            noise_scale=None if noise is None else noise.total.noise_scale,
        )

    def not_stepped(self, step: StepInProgress, outcome: Outcome, ledger: Ledger) -> None:
        """The update was not made: the samples come again, or are passed over."""
        self.rollback.release()
        self.units += 1
        if outcome.redo:
            self._overflows += 1
            if self._overflows > MAX_OVERFLOWS:
                raise LossError(
                    f"the gradient scaler found an overflow {self._overflows} times in a row at the same samples. "
                    f"Look at the loss there, lower the learning rate, or use bfloat16."
                )
        else:
            ledger.commit(step.stop)
            self.partial = set()
        self.abandon(step, outcome.reason, redone=outcome.redo)

    def abandon(self, step: StepInProgress, reason: str, *, redone: bool, for_memory: bool = False) -> None:
        """End a step without an update, and say so; ``for_memory`` also how large micro-batches may be now."""
        step.ended = True
        if redone:
            self.rollback.undo()
        self.forget()
        self._job._emit(
            StepSkipped(
                time=time.time(),
                step=self._job._pace.step,
                reason=reason,
                samples=step.plan.global_batch,
                redone=redone,
                max_micro=self._job._pace.max_micro if for_memory else None,
            )
        )

    def forget(self) -> None:
        """Drop what the step under way left behind."""
        self._record = None
        self._job.metrics.drop()
        for trainee in self._job._trainees:
            trainee.clear()

    def end_epoch(self, ledger: Ledger, *, complete: bool) -> None:
        """The body of an epoch is done: schedules move, the ledger turns the page."""
        for trainee in self._job._trainees:
            trainee.drain()
            if trainee.schedule is not None:
                trainee.schedule.end_epoch()
        self._job._announcer.epoch_ended(complete=complete)
        ledger.next_epoch()
        self.done = False

    def state_dict(self) -> dict[str, Any]:
        """Where the last measured step stood, and how far the one under way had come."""
        return {
            "measured_at": self.measured_at,
            "units": self.units,
            "partial": sorted(self.partial),
            "partial_batch": self.partial_batch,
            "closed": self._closed,
            "gain": self.gain,
            "factors": [asdict(factors) for factors in self.factors],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.done = bool(state.get("done", False))  # in checkpoints only: who joins a body goes through it
        self.measured_at = int(state["measured_at"])
        self.units = int(state["units"])
        self.partial, self.partial_batch = set(state["partial"]), int(state["partial_batch"])
        self._closed = int(state.get("closed", -1))
        self.gain = float(state.get("gain", 1.0))
        self.factors = tuple(Factors(**factors) for factors in state.get("factors", ()))
