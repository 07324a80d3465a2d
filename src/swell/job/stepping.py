"""One step after another: handed out, computed, voted on, updated, committed, or done again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from swell.core.ledger import Ledger
from swell.core.moment_average import window_of
from swell.core.protocols import FinitePolicy
from swell.core.types import Observation
from swell.errors import DataError, LoopError, WorldError
from swell.job.checks import check_gradients, check_loss
from swell.job.ending import Ending
from swell.job.memory import Memory, is_out_of_memory
from swell.job.trainee import Clip, Trainee
from swell.job.update import Outcome, Position, Updater
from swell.job.vote import why_failed
from swell.loop.statistics import Statistics
from swell.loop.step import StepInProgress
from swell.policies import find
from swell.policies.decision import follows_noise, lays_out, require_noise

if TYPE_CHECKING:
    from swell.job.job import Job


class Stepping:
    """The steps of one job; holds the one that is under way."""

    def __init__(self, job: Job, ending: Ending, *, nonfinite: str, statistics: Statistics | None) -> None:
        self._job = job
        self._statistics = statistics
        self._updater = Updater(
            job.metrics, job.device, nonfinite=nonfinite, exact=bool(statistics and statistics.exact)
        )
        self._ending = ending
        self._finite = find(job._pace.policy, FinitePolicy)  # asked once: the check is slow for every step
        self._awaits_noise = follows_noise(job._pace.policy)
        require_noise(job._pace.policy, measured=statistics is not None)
        self._memory = Memory(job.device, foresee=lays_out(job._pace.policy))
        self._updating = False
        self._current: StepInProgress | None = None
        self._batch = 0  # what the policy chose for the step under way, whole even where the epoch's end cuts it
        self._seen: Observation | None = None  # what the policy saw last
        self._looping = False
        self.entered = 0  # how often the user began to iterate the loader
        self._epoch = 0  # of the pass that is being iterated
        self.finished = False  # whether the policy says that the run is over
        self.complete = False  # whether the epoch's last sample was committed

    def expect(self, total_samples: int | None) -> None:
        """The run will be so long: figures are averaged over a fitting part of it."""
        settings, base = self._statistics, self._job._pace.base
        given = None if settings is None else settings.window
        window = window_of(total_samples, base_batch=base) if given is None else given
        for trainee in self._job._trainees:
            trainee.noise.window = trainee.preconditioned_noise.window = window

    @property
    def under_way(self) -> bool:
        """Whether a step is."""
        return self._current is not None

    @property
    def awaited(self) -> bool:
        """Whether the policy waits for a noise scale that is sure."""
        noise = self._job.noise if self._awaits_noise else None
        return self._awaits_noise and (noise is None or not noise.sure)

    @property
    def through(self) -> bool:
        """Whether the epoch at hand was gone through to its end."""
        return self.complete and self._epoch == self._job._ledger.epoch

    def enter(self) -> None:
        """The user began to iterate the loader."""
        if self._looping:
            raise LoopError(
                "the training loader is being iterated already. Finish or leave that loop first; two at once would "
                "take turns with one set of samples."
            )
        self._looping, self.complete = True, False
        self.entered += 1
        self._epoch = self._job._ledger.epoch
        self._ending.rollback.look(self._job._trainees)

    def leave(self) -> None:
        """The user left the loader, at its end or before, or closed the job; a step under way is forgotten."""
        self._looping = False
        if self._current is not None and not self._current.ended:
            self._ending.rollback.undo()
            self._ending.forget()
        self._current = None

    def begin(self, ledger: Ledger) -> StepInProgress | None:
        """Choose and lay out the next step; None at the end of the epoch or of the run."""
        while True:
            try:
                step = self._begin(ledger)
                if step is None and ledger.epoch == self._epoch:
                    self._ending.end_pass(ledger.epoch)
                return step
            except WorldError as error:
                self._job._elasticity.recover(error)

    def _begin(self, ledger: Ledger) -> StepInProgress | None:
        self._ending.settle()
        self._memory.tidy()
        job, pace = self._job, self._job._pace
        if ledger.epoch != self._epoch:  # while this replica was cut off, others have finished the pass
            return None
        for trainee in job._trainees:
            trainee.follow_groups()
        if job._passes.reached:
            return None
        if self._ending.partial:  # a step that some of the optimizers have made already
            batch = self._ending.partial_batch
        elif pace.settled:  # a batch that never changes needs no look round
            batch = pace.batch
        else:
            seen = self._seen = self.observe(ledger)
            self.finished = self._finite is not None and bool(self._finite.finished(seen))
            if self.finished:
                return None
            batch = pace.choose(seen)
        if batch > ledger.length:
            raise DataError(
                f"a global batch of {batch} was chosen, but the data set has only {ledger.length} samples an epoch. "
                f"Lower the batch (or the policy's maximum) to {ledger.length} or less."
            )
        span = job._training.next_span(batch)
        if span is None:
            self.complete = True
            return None
        self._batch = batch
        self._current = StepInProgress(
            epoch=ledger.epoch, start=span[0], rank=job.rank, **self._lay_out(batch, span[1] - span[0])
        )
        self._current.stepped = set(self._ending.partial)
        self._ending.begin()
        return self._current

    def observe(self, ledger: Ledger) -> Observation:
        """All that the policy may look at before the next step."""
        job = self._job
        return job._pace.observe(
            replicas=job.replicas,
            nodes=job._world.nodes,
            noise=job.noise,
            samples=ledger.samples,
            epoch=ledger.epoch,
            epoch_samples=ledger.cursor,
            epoch_size=job._training.epoch_size,
            total_samples=job._passes.total_samples,
            total_progress=job._passes.target,
        )

    def _lay_out(self, batch: int, count: int) -> dict[str, Any]:
        """The step's plan, whether it is measured, and whether it was split for that."""
        job, pace, settings = self._job, self._job._pace, self._statistics
        plan = pace.lay_out(batch, count, replicas=job.replicas, split=False)
        if settings is None:
            return {"plan": plan, "measured": False}
        place = pace.step, batch / pace.base, job._trainees[0].noise.window
        awaited = self.awaited
        if plan.num_micro_batches > 1:
            return {"plan": plan, "measured": settings.measures(*place, awaited=awaited)}
        # What is left at an epoch's end may be too few to be cut: batch norm refuses a single sample.
        split = count == batch and count > 1 and settings.splits(*place, awaited=awaited)
        plan = pace.lay_out(batch, count, replicas=job.replicas, split=split)
        return {"plan": plan, "measured": split, "split": split}

    # The user's two calls

    def backward(
        self, loss: Tensor, weight: Any, trainees: Sequence[Trainee], *, only: bool, options: dict[str, Any]
    ) -> None:
        """Run one backward pass with the loss weighted by its part of the step."""
        step = self._step_for("backward")
        self._job._elasticity.reach("backward")
        check_loss(loss)
        if step.taken and not only:
            raise LoopError(
                "job.backward was called after job.step for the same batch. Call backward for all its losses first, "
                "or name the optimizer in both calls if each has its own loss."
            )
        multiplier = step.multiplier(None if weight is None else float(weight))
        for trainee in trainees:
            trainee.add_loss(loss, multiplier)
            trainee.expect(multiplier, measured=step.measured, again=step.backwards > 0)
        scaled = loss * multiplier
        scaler = trainees[0].scaler
        if scaler is not None:
            scaled = scaler.scale(scaled)
        if only:
            options = {**options, "inputs": [p for t in trainees for p in t.accumulator.parameters if p.requires_grad]}
        try:
            torch.autograd.backward(scaled, **options)
        except BaseException as error:
            step.spoiled = f"the backward pass raised {type(error).__name__}"
            raise
        step.backwards += 1

    def weigh(self, trainees: Sequence[Trainee]) -> None:
        """Weigh gradients that the user's own ``loss.backward()`` left, as ``backward`` would have weighed the loss.

        For loops that were written for another library. Call it once for each micro-batch and trainee, before ``step``.
        """
        step = self._step_for("step")
        multiplier = step.multiplier(None)
        for trainee in trainees:
            trainee.accumulator.weigh(multiplier)
        step.backwards += 1

    def step(
        self,
        closure: Callable[..., Any] | None,
        inputs: tuple[Any, ...],
        trainees: Sequence[Trainee],
        clip: Clip | None,
    ) -> bool:
        """Finish the micro-batch for these trainees; update where it was the last."""
        step = self._step_for("step")
        if closure is None and step.backwards == 0:
            raise LoopError(
                "job.step was called without job.backward for this batch. Call job.backward(loss) instead of "
                "loss.backward(), then job.step()."
            )
        updated = False
        for trainee in trainees:
            number = self._number(trainee)
            if number in step.taken:
                raise LoopError("job.step was called twice for one batch and optimizer. Call it once for each batch.")
            if step.backwards > 0:
                self._take(step, trainee, step.index)
            if closure is not None:
                step.closures.setdefault(number, []).append((step.index, closure, inputs))
            step.taken.add(number)
            if step.is_last and not step.ended:
                if number in step.stepped:  # before the step broke, by the gradient of the same samples
                    trainee.clear()
                    updated = True
                else:
                    check_gradients(step, self._job._trainees)
                    updated = self._update(step, trainee, clip) or updated
        return updated

    def _take(self, step: StepInProgress, trainee: Trainee, index: int) -> None:
        micro = step.mine[index]
        multiplier = micro.weight if not step.weighted else (step.weight or 0.0) / step.plan.global_batch
        trainee.accumulator.take(
            multiplier=multiplier,
            measure=step.measured,
            preconditioned=trainee.wants_preconditioned,
            round_weight=step.round_weight(index),
        )

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Running out of memory in the body spoils the step and is remembered, instead of raising."""
        step = self._step_for("attempt")
        try:
            yield
        except Exception as error:
            size = step.mine[step.index].size
            if not is_out_of_memory(error) or self._updating or size <= 1:
                raise
            self._memory.ran_out(size)
            step.spoiled, step.ran_out = f"memory ran out at a micro-batch of {size} samples", size
            self._ending.forget()

    def _update(self, step: StepInProgress, trainee: Trainee, clip: Clip | None) -> bool:
        before, self._updating = (self._job.steps, len(self._ending.partial)), True
        try:
            return self._update_together(step, trainee, clip)
        except WorldError as error:
            self._ending.recover(step, error)
            # Made here, or by replicas that came further and handed it on.
            return (self._job.steps, len(self._ending.partial)) > before
        finally:
            self._updating = False

    def _update_together(self, step: StepInProgress, trainee: Trainee, clip: Clip | None) -> bool:
        job, number = self._job, self._number(trainee)
        ledger = job._ledger
        votes = self._updater.vote(
            job.collective, step, trainee, number, self._flags(step), self._ending.last_s, self._memory.limit, clip
        )
        if not step.mine:  # this replica had no sample, but clips the sum as the others do
            clip = trainee.clip_as(max(votes, key=lambda vote: abs(vote.clip)).clip)
        trainee.last_clip = clip
        job._pace.agree_on_memory(vote.fits for vote in votes)
        if any(vote.failed for vote in votes):
            self._ending.abandon(step, why_failed(votes), redone=True, for_memory=any(vote.ran_out for vote in votes))
            return False
        position = Position(
            scale=step.plan.global_batch / job._pace.base,
            progress=job._pace.progress,
            samples=ledger.samples,
            samples_between=ledger.samples - self._ending.measured_at + step.plan.global_batch,
            step=job._pace.step,
        )
        closures = step.closures.get(number)
        if closures is not None and job._world.elastic:
            self._ending.rollback.hold(trainee)
        alone = len(job._trainees) == 1
        outcome = self._updater.run(
            job.collective,
            step,
            trainee,
            votes,
            position,
            with_metrics=alone,
            frozen=not job._trains_at(job.steps),
            clip=clip,
            closure=None if closures is None else lambda: self._evaluate(step, trainee, votes),
            report=self._ending.record().set_loss if number == 0 else lambda loss: None,
        )
        trainee.clear()
        if not outcome.stepped:
            self._ending.not_stepped(step, outcome, ledger)
            return False
        self._ending.stepped(step, number, outcome, batch=self._batch)
        if len(step.stepped) == len(job._trainees):
            self._memory.fitted(step.plan.micro_batch)
            self._ending.commit(step, ledger, outcome, batch=self._batch, seen=self._seen)
        return True

    def _evaluate(self, step: StepInProgress, trainee: Trainee, votes: list[Any]) -> Tensor:
        """The loss and gradient of the whole step, for an optimizer that asks for them again."""
        trainee.clear()
        shown, step.taken = (step.index, step.backwards, step.weight), set()
        for index, closure, inputs in step.closures[self._number(trainee)]:
            step.index, step.backwards, step.weight = index, 0, None
            with torch.enable_grad():
                closure(*inputs)
            if step.backwards == 0:
                raise LoopError("the closure did not call job.backward(loss). Call it in place of loss.backward().")
            self._take(step, trainee, index)
        step.index, step.backwards, step.weight = shown
        return self._updater.evaluate(self._job.collective, step, trainee, votes)

    def end(self, step: StepInProgress, ledger: Ledger) -> None:
        """The loader goes on: replicas without samples join the update, spoiled steps are given up together."""
        if step.ended:
            return
        if step.spoiled is not None:
            self._give_up_together(step)
        elif not step.mine:
            for number, trainee in enumerate(self._job._trainees):
                if not step.ended and number not in step.stepped:
                    self._update(step, trainee, None)
        elif step.stepped:  # several optimizers, and the user let some of them rest
            try:
                self._ending.commit(step, ledger, Outcome(stepped=True), batch=self._batch, seen=self._seen)
            except WorldError as error:
                self._ending.recover(step, error)

    def _give_up_together(self, step: StepInProgress) -> None:
        try:
            votes = self._updater.vote(self._job.collective, step, None, 0, self._flags(step), 0.0, self._memory.limit)
            self._job._pace.agree_on_memory(vote.fits for vote in votes)
        except WorldError as error:
            self._ending.recover(step, error)
        else:
            reason = step.spoiled if step.spoiled and not step.ran_out else why_failed(votes)
            self._ending.abandon(step, reason, redone=True, for_memory=any(vote.ran_out for vote in votes))

    def _flags(self, step: StepInProgress) -> tuple[bool, bool, bool]:
        job = self._job
        noticed, pending = job._elasticity.notice() is not None, job._world.pending()
        return noticed, pending, job._keeper.due(step.plan.global_batch)

    def spoil(self, reason: str) -> None:
        """Mark the step under way as not to be finished."""
        if self._current is None or self._current.ended:
            raise LoopError("job.redo was called with no step under way. Call it inside the training loop.")
        self._current.spoiled = reason

    # Small questions

    def _step_for(self, call: str) -> StepInProgress:
        if self._current is None:
            raise LoopError(
                f"job.{call} was called outside the training loop. Call it inside `for batch in job.loader(...)`, once "
                f"for each batch."
            )
        self._current.require_usable(call)
        return self._current

    def _number(self, trainee: Trainee) -> int:
        return next(i for i, other in enumerate(self._job._trainees) if other is trainee)
