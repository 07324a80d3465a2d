"""How a step ends: committed with its samples, done again, or passed over."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from swell.core.events import BatchChanged, EpochEnded, GrowthTakenBack, Stepped, StepSkipped
from swell.core.types import Observation
from swell.errors import LossError
from swell.job.horizon import Horizon
from swell.job.peers import Peers
from swell.job.planner import Chosen
from swell.job.rollback import Rollback
from swell.job.run_state import RunState
from swell.job.step_clock import Duration, HostDuration, StepClock
from swell.job.step_record import StepRecord
from swell.job.update import Outcome
from swell.loop.measuring_budget import shape_of
from swell.loop.metrics import exchange
from swell.loop.step import Phase, StepInProgress
from swell.policies import observation_to_dict
from swell.telemetry.reporter import Reporter

MAX_OVERFLOWS = 100  # in a row: a gradient scaler that halves more often started from a value that makes no sense


class Committer:
    """Moves ledger, counts, schedules and log when a step is over; with Recovery the only part to raise ``rounds``."""

    def __init__(
        self,
        state: RunState,
        peers: Peers,
        horizon: Horizon,
        rollback: Rollback,
        *,
        reporter: Reporter,
        nonfinite: str,
        trains: Callable[[int], bool],
        after_commit: Callable[[int], None],
    ) -> None:
        self._state, self._peers, self._horizon, self.rollback = state, peers, horizon, rollback
        self._reporter, self._emit, self._nonfinite = reporter, reporter.emit, nonfinite
        self._trains, self._after_commit = trains, after_commit
        self._record: StepRecord | None = None
        self._overflows = 0
        self._undo_rest = False  # whether the user's code may still change something of a step that comes again
        self._clock = StepClock(peers.device)
        self._latest: Duration | HostDuration | None = None

    @property
    def last_s(self) -> float:
        """How long the latest step took on this replica; 0 where there was none."""
        return 0.0 if self._latest is None else self._latest.seconds

    def begin(self, *, timed: bool) -> None:
        """A step begins: its changes can be undone until its commit, and its metrics wait for that.

        ``timed`` if its own time counts, and not only the mean of many.
        """
        self._clock.start(exact=timed)
        self.rollback.begin_step()
        self.rollback.begin_random(self._state.ledger.samples)
        self._state.metrics.begin_step()

    def record(self) -> StepRecord:
        """The record of the step under way."""
        if self._record is None:
            self._record = StepRecord(nonfinite=self._nonfinite)
        return self._record

    def updated(self, step: StepInProgress, chosen: Chosen, number: int, outcome: Outcome) -> None:
        """One optimizer has stepped; if the step breaks before the others have, this one does not step again."""
        marks = self._state.marks
        step.enter(Phase.UPDATED)
        step.stepped.add(number)
        self.rollback.release()
        marks.rounds += 1
        marks.stepped, marks.stepped_batch = set(step.stepped), chosen.batch
        if number == min(step.stepped):  # the step counts by the first optimizer that moves
            marks.factors, marks.gain = outcome.factors, outcome.gain

    def commit(self, step: StepInProgress, chosen: Chosen, outcome: Outcome, *, in_body: bool) -> None:
        """Count the step's samples as done, together with the update they made; ``in_body`` in a call of the user's."""
        state, peers = self._state, self._peers
        pace, marks, ledger = state.pace, state.marks, state.ledger
        if peers.faulty:
            peers.reach("commit", step=pace.step)
        if len(state.learners) > 1:
            exchange(state.metrics, peers.collective, peers.device)
        state.metrics.commit()
        before = ledger.samples
        ledger.commit(step.stop)
        step.enter(Phase.COMMITTED)
        self._overflows = 0
        marks.stepped = set()
        if step.measured or step.paired:
            marks.measured_at = ledger.samples
        if chosen.observation is not None:
            self._report_change(chosen, chosen.observation)
        pace.timed(outcome.last_s)
        if chosen.budgeted:
            state.measuring.timed(outcome.last_s)
            if step.plan.global_batch == chosen.batch:  # the short last step of an epoch says little
                shape = shape_of(step.plan, split=step.split)
                state.measuring.committed(shape, measured=step.measured or step.paired, by_itself=chosen.timed)
        pace.committed(
            step.plan,
            batch=chosen.batch,
            samples=before,
            gain=marks.gain,
            nodes=peers.nodes,
            as_chosen=not chosen.split,
        )
        state.milestones.pass_to(
            steps=pace.step,
            samples=ledger.samples,
            progress=pace.progress,
            seconds=outcome.signals.seconds,
            askable=in_body and all(step.plan.shares),
        )
        self._latest = self._clock.stop()
        for learner in state.learners:
            if learner.schedule is not None and self._trains(pace.step - 1):
                target = self._horizon.target
                learner.schedule.advance(pace.progress if target is None else min(pace.progress, target))
        if self._reporter.heard or peers.elastic:
            self._report(step, self._latest)
        elif pace.follows_noise:
            self._watch_growth(step)
        else:
            self._record = None  # it still looks at the loss when that arrives
        self._after_commit(pace.step)

    def _report_change(self, chosen: Chosen, observation: Observation) -> None:
        pace = self._state.pace
        if not pace.differs(chosen.batch, observation):
            return
        self._emit(
            BatchChanged(
                time=time.time(),
                step=pace.step,
                before=pace.batch,
                after=chosen.batch,
                policy=repr(pace.policy),
                seen=observation_to_dict(observation),
                micro_before=None if pace.micro is None else observation.micro_batch,
                micro_after=pace.micro,
            )
        )

    def _report(self, step: StepInProgress, duration: Duration | HostDuration) -> None:
        """Log the step as soon as its loss is there too."""
        state, plan = self._state, step.plan
        pace, marks, ledger, noise = state.pace, state.marks, state.ledger, state.noise
        batch = pace.batch  # as it was chosen; the last step of an epoch may have had fewer samples
        facts: dict[str, Any] = dict(
            step=pace.step,
            epoch=ledger.epoch,
            samples=ledger.samples,
            global_batch=plan.global_batch,
            replicas=plan.replicas,
            micro_batch=plan.micro_batch,
            accumulation=plan.accumulation,
            lr=tuple([float(group["lr"]) for group in state.learners[0].optimizer.param_groups]),
            lr_factor=tuple([factors.lr for factors in marks.factors]),
            gain=marks.gain,
            progress=pace.progress,
            signal=None if noise is None else noise.total.signal,
            noise=None if noise is None else noise.total.noise,
            noise_scale=None if noise is None else noise.total.noise_scale,
            noise_low=None if noise is None else noise.interval[0],
            noise_high=None if noise is None else noise.interval[1],
            data_s=step.waited_s,
            measured=step.measured or step.paired,
        )

        def tell(loss: float | None) -> None:
            event = Stepped(time=time.time(), loss=loss, step_s=duration.seconds, **facts)
            self._emit(event)
            if pace.follows_noise:  # otherwise the user chose the batches
                self._see_loss(loss, batch=batch, step=event.step, samples=event.samples, replicas=event.replicas)

        self._take_record().set_committed(tell)

    def _watch_growth(self, step: StepInProgress) -> None:
        """Nobody listens, but a growth that raises the loss is taken back."""
        pace = self._state.pace
        facts = {"batch": pace.batch, "step": pace.step, "samples": self._state.samples}
        self._take_record().set_committed(lambda loss: self._see_loss(loss, replicas=step.plan.replicas, **facts))

    def _take_record(self) -> StepRecord:
        if self._record is None:  # the first optimizer did not step, or had stepped before the step was done again
            self.record().set_loss(None)
        record, self._record = self.record(), None
        return record

    def _see_loss(self, loss: float | None, *, batch: int, step: int, samples: int, replicas: int) -> None:
        rise = self._state.growth.see(batch=batch, loss=loss, samples=samples, replicas=replicas)
        if rise is not None:
            self._emit(GrowthTakenBack(time=time.time(), step=step, **asdict(rise)))

    def skip(self, step: StepInProgress, outcome: Outcome) -> None:
        """The update was not made: the samples come again, or are passed over."""
        self.rollback.release()
        self._state.marks.rounds += 1
        if outcome.redo:
            self._overflows += 1
            if self._overflows > MAX_OVERFLOWS:
                raise LossError(
                    f"the gradient scaler found an overflow {self._overflows} times in a row at the same samples. "
                    f"Look at the loss there, lower the learning rate, or use bfloat16."
                )
            self.rollback.undo()
        else:
            self._state.ledger.commit(step.stop)
            self._state.marks.stepped = set()
        self._end_without_update(step, outcome.reason, redone=outcome.redo)

    def give_up(self, step: StepInProgress, reason: str, *, for_memory: bool = False) -> None:
        """Undo the step; its samples come again. ``for_memory`` also logs how large micro-batches may be now."""
        self.rollback.undo()
        self._end_without_update(
            step, reason, redone=True, max_micro=self._state.pace.max_micro if for_memory else None
        )

    def undo(self, step: StepInProgress) -> None:
        """A replica was lost: put back what the step changed, before states are compared."""
        if not step.ended:
            self.rollback.undo()

    def after_loss(self, step: StepInProgress, reason: str, *, committed: bool) -> None:
        """End the step once the world is formed again; ``committed`` where other replicas had committed it.

        Their state, which this replica has then, counts it. Otherwise its samples come again.
        """
        self.rollback.begin_step()
        if step.ended:
            return
        if committed:
            step.enter(Phase.COMMITTED, by_others=True)
            self.forget()
        else:
            self._end_without_update(step, reason, redone=True)

    def _end_without_update(
        self, step: StepInProgress, reason: str, *, redone: bool, max_micro: int | None = None
    ) -> None:
        step.enter(Phase.GIVEN_UP)
        self.forget()
        self._undo_rest = redone
        self._state.metrics.muted = True  # until the user's code for this step is over
        self._emit(
            StepSkipped(
                time=time.time(),
                step=self._state.steps,
                reason=reason,
                samples=step.plan.global_batch,
                redone=redone,
                max_micro=max_micro,
            )
        )

    def end_body(self) -> None:
        """The user's code for a step is over: what it did after the step was given up is undone."""
        self._state.metrics.muted, self._state.metrics.samples = False, 1
        if self._undo_rest:
            self._undo_rest = False
            self.rollback.undo()
            for learner in self._state.learners:
                learner.clear()

    def discard(self) -> None:
        """Undo and forget the step under way, which the user left."""
        self.rollback.undo(again=False)
        self.forget()

    def forget(self) -> None:
        """Drop what the step under way left behind."""
        self._record = None
        self._state.metrics.drop()
        for learner in self._state.learners:
            learner.clear()

    def end_epoch(self, *, complete: bool) -> None:
        """The body of an epoch is done: schedules move, the ledger goes on to the next epoch."""
        state, ledger = self._state, self._state.ledger
        size = state.data.epoch_size if complete and state.data.drop_last else None
        for learner in state.learners:
            if self._reporter.heard:  # the losses of an epoch are told before its end
                learner.noise.drain()
            if learner.schedule is not None:
                learner.schedule.end_epoch()
        self._emit(
            EpochEnded(
                time=time.time(),
                epoch=ledger.epoch,
                samples=ledger.cursor,
                complete=complete,
                metrics=state.metrics.end_epoch(),
                dropped=0 if size is None else size - ledger.cursor,
            )
        )
        ledger.next_epoch()
        state.marks.body_done = False
