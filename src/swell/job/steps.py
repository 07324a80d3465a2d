"""The step under way and the user's calls on it: opened, computed, voted on, updated, then committed or given up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from swell.core.protocols import Collective
from swell.errors import LoopError, WorldError
from swell.gradients.overlap import Pass
from swell.job.arguments import check_loss
from swell.job.backward_thread import in_this_thread
from swell.job.committer import Committer
from swell.job.habits import Habits
from swell.job.learner import Clip, Learner
from swell.job.memory import Memory, is_out_of_memory
from swell.job.norm_memory import NormMemory
from swell.job.peers import Peers
from swell.job.planner import Chosen
from swell.job.recovery import Gained
from swell.job.run_state import RunState
from swell.job.sending import Sending
from swell.job.update import Outcome, Position, Updater
from swell.job.vote import FOLLOWING, RESTING, Signals, Verdict
from swell.loop.step import Phase, StepInProgress

_ADDED = "parameters were added to the optimizer in the middle of a step"


class Steps:
    """The steps of one job, one at a time.

    ``signals`` gives what this replica's vote carries for the moment after a step of N samples; ``lost`` forms the
    world again after a replica was lost; ``trains`` says whether weights move at a step.
    """

    def __init__(
        self,
        state: RunState,
        peers: Peers,
        updater: Updater,
        committer: Committer,
        *,
        memory: Memory,
        signals: Callable[[int], Signals],
        lost: Callable[[WorldError], Gained],
        trains: Callable[[int], bool],
    ) -> None:
        self._state, self._peers, self._updater, self._committer = state, peers, updater, committer
        self._memory, self._signals, self._lost, self._trains = memory, signals, lost, trains
        self.current: StepInProgress | None = None
        self._chosen: Chosen | None = None
        self._habits = Habits(state.pace, peers)
        self._norms = NormMemory()
        self._updating = False
        self._weighs = False  # whether the user's code runs the backward passes
        self._looping = False
        self.watched = peers.elastic  # whether anybody looks at the marks
        self._after: tuple[Signals, int] | None = None  # signals of the step committed last, and its world

    @property
    def under_way(self) -> bool:
        """Whether a step is."""
        return self.current is not None

    @property
    def chosen(self) -> Chosen | None:
        """The step under way, or the one before, as it was chosen; None before the first."""
        return self._chosen

    @contextmanager
    def looping(self) -> Iterator[None]:
        """Around the user's loop over the loader; a step that is under way when the loop is left is forgotten."""
        if self._looping:
            raise LoopError(
                "the training loader is being iterated already. Finish or leave that loop first; two at once would "
                "take turns with one set of samples."
            )
        self._looping = True
        self._committer.rollback.begin_pass(self._state.learners)
        for learner in self._state.learners:
            learner.buffers.look_again()
        try:
            self._norms.begin(self._state.learners)
            yield
        finally:
            self.leave()

    def mark(self, doing: str) -> None:
        """A sign of progress, and what this replica does next."""
        self._peers.mark(doing)

    def leave(self) -> None:
        """The user left the loader, at its end or before, or closed the job."""
        self._looping = False
        self._norms.end()
        self._peers.mark("outside")
        if self.current is not None and not self.current.ended:
            for learner in self._state.learners:
                learner.early.cancel()
            self._committer.discard()
        self._committer.end_body()
        self.current = None

    def open(self, chosen: Chosen) -> StepInProgress:
        """Begin a step; its micro-batches are handed out next."""
        self._memory.tidy()
        self._chosen = chosen
        for learner in self._state.learners:
            if learner.early.world is not self._peers.collective:
                learner.early.enter(
                    self._peers.collective, able=_overlaps(self._peers.collective, self._state.learners)
                )
            calls_backward = not self._weighs and chosen.plan.shares[self._peers.rank]
            if not calls_backward and learner.gradients.outdated:  # ``backward`` looks itself
                learner.follow_groups()
        self.current = StepInProgress(
            epoch=chosen.epoch,
            start=chosen.start,
            plan=chosen.plan,
            rank=self._peers.rank,
            measured=chosen.measured,
            split=chosen.split,
            stepped=set(self._state.marks.stepped),
        )
        self._norms.follow(chosen.base_steps, passes=len(self.current.mine))
        self._committer.begin(timed=chosen.timed)
        return self.current

    # The user's calls

    def backward(
        self, loss: Tensor, weight: Any, learners: Sequence[Learner], *, only: bool, options: dict[str, Any]
    ) -> None:
        """Run one backward pass with the loss weighted by its part of the step."""
        step = self._usable("backward")
        if step.abandoned:
            return
        if self._peers.faulty:
            self._peers.reach("backward", step=self._state.steps)
        check_loss(loss)
        if step.taken and not only:
            raise LoopError(
                "job.backward was called after job.step for the same batch. Call backward for all its losses first, "
                "or name the optimizer in both calls if each has its own loss."
            )
        self._habits.before_backward(step, loss, learners, weighted=weight is not None)
        multiplier = step.multiplier(None if weight is None else float(weight))
        last = step.is_last and not self._updating  # in an update, an optimizer asks for the gradient again
        for learner in learners:
            if learner.gradients.outdated:
                if learner.loss.parts:  # then there are gradients of this step without the new parameters
                    step.touched = _ADDED
                else:
                    learner.follow_groups()
            if step.index > 0 and not learner.gradients.follow():
                step.touched = "gradients were changed between two micro-batches"
            learner.loss.add(loss, multiplier)
            if learner.communicates:
                samples = step.mine[step.index].size
                learner.expect(multiplier, measured=step.measured, samples=samples, passes=step.backwards, last=last)
        scaler = learners[0].scaler
        if scaler is not None:
            loss = scaler.scale(loss)
        if multiplier != 1 and "grad_tensors" in options:
            loss = loss * multiplier
        elif multiplier != 1:  # the same gradients, without computing that product
            options = {**options, "grad_tensors": torch.full_like(loss, multiplier)}
        if only:
            for learner in learners:
                step.named.setdefault(self._state.learners.index(learner), set()).add(step.index)
            parameters = [p for learner in learners for p in learner.gradients.parameters if p.requires_grad]
            options = {**options, "inputs": parameters}
        try:
            with in_this_thread(all([learner.on_one_gpu for learner in learners])):
                torch.autograd.backward(loss, **options)
        except BaseException as error:
            step.spoiled = f"the backward pass raised {type(error).__name__}"
            raise
        finally:
            for learner in learners:
                if learner.early.overlap is not None:
                    learner.early.overlap.disarm()
        step.backwards += 1
        for learner in learners:
            learner.touched.remember(learner.gradients.parameters, closely=step.plan.num_micro_batches > 1)

    def weigh(self, learners: Sequence[Learner]) -> None:
        """Weigh gradients that the user's own ``loss.backward()`` left, as ``backward`` would have weighed the loss.

        For loops that were written for another library. Call it once for each micro-batch and learner, before ``step``.
        """
        step = self._usable("step")
        step.foreign = True
        if step.abandoned:
            return
        multiplier = step.multiplier(None)
        self._weighs = True
        for learner in learners:
            if learner.gradients.outdated:
                step.touched = _ADDED
            learner.gradients.weigh(multiplier)
        step.backwards += 1

    def step(
        self,
        closure: Callable[..., Any] | None,
        inputs: tuple[Any, ...],
        learners: Sequence[Learner],
        clip: Clip | None,
    ) -> bool:
        """Finish the micro-batch for these learners; update where it was the last."""
        step = self._usable("step")
        if step.abandoned:
            return step.phase is Phase.COMMITTED
        if closure is None and step.backwards == 0:
            raise LoopError(
                "job.step was called without job.backward for this batch. Call job.backward(loss) instead of "
                "loss.backward(), then job.step()."
            )
        updated = False
        for learner in learners:
            number = self._state.learners.index(learner)
            if number in step.taken:
                raise LoopError("job.step was called twice for one batch and optimizer. Call it once for each batch.")
            if step.backwards > 0:
                self._habits.before_step(step, learner)
                _take(step, learner, step.index)
            if closure is not None:
                step.closures.setdefault(number, []).append((step.index, closure, inputs))
            step.taken.add(number)
            if step.is_last and not step.ended:
                if number in step.stepped:  # before the step broke, by the gradient of the same samples
                    learner.clear()
                    updated = True
                else:
                    _check_gradients(step, self._state.learners)
                    updated = self._update(step, number, clip) or updated
        return updated

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Running out of memory in the body spoils the step and is remembered, instead of raising."""
        step = self._usable("attempt")
        try:
            yield
        except Exception as error:
            size = step.mine[step.index].size
            if not is_out_of_memory(error) or self._updating or size <= 1:
                raise
            self._memory.ran_out(size)
            if step.abandoned:  # its samples come again anyway
                return
            step.spoiled, step.ran_out = f"memory ran out at a micro-batch of {size} samples", size
            self._committer.forget()

    def spoil(self, reason: str) -> None:
        """Mark the step under way as one that cannot be finished."""
        if self.current is not None and self.current.abandoned:
            return
        if self.current is None or self.current.ended:
            raise LoopError("job.redo was called with no step under way. Call it inside the training loop.")
        self.current.spoiled = reason

    def _usable(self, call: str) -> StepInProgress:
        step = self.current
        if step is None:
            raise LoopError(
                f"job.{call} was called outside the training loop. Call it inside `for batch in job.loader(...)`, once "
                f"for each batch."
            )
        if step.index < 0 or step.ended or step.spoiled is not None:
            step.require_usable(call)
        return step

    # The end of a step

    def close(self, step: StepInProgress) -> None:
        """The loader goes on: replicas without samples join the update, spoiled steps are given up together."""
        if step.named:
            self._habits.after_step(step)
        if not step.ended:
            self._end(step)
        self._committer.end_body()

    def _end(self, step: StepInProgress) -> None:
        if step.spoiled is not None:
            self._give_up_together(step)
        elif not step.mine:
            while not step.ended:
                self._update(step, FOLLOWING, None)
        elif step.stepped:  # several optimizers, and the user let some of them rest
            self._update(step, RESTING, None)

    def take_signals(self) -> Signals | None:
        """What the step committed last left for the boundary, once; None where the world has changed since."""
        after, self._after = self._after, None
        return None if after is None or after[1] != self._peers.generation else after[0]

    def _update(self, step: StepInProgress, number: int, clip: Clip | None) -> bool:
        """Whether the weights moved: here, or on replicas that were ahead and whose state this one has taken over.

        ``number`` is that of the optimizer that steps; FOLLOWING for the one that the others let step, RESTING for none
        of those that are left.
        """
        self._updating = True
        try:
            return self._update_together(step, number, clip)
        except WorldError as error:
            return self._recover(step, error).update
        finally:
            self._updating = False

    def _recover(self, step: StepInProgress, error: WorldError) -> Gained:
        """A replica was lost: form the world again, then do the step again unless others had finished it.

        Where the loss cuts an exchange short, some replicas may have all of it and others not. The state of those that
        are ahead then becomes everybody's.
        """
        self._committer.undo(step)
        gained = self._lost(error)
        self._committer.after_loss(step, str(error), committed=gained.step)
        return gained

    def _update_together(self, step: StepInProgress, number: int, clip: Clip | None) -> bool:
        state, collective = self._state, self._peers.collective
        learner, closures = state.learners[max(number, 0)], step.closures.get(number)
        sending = None
        if learner.early.overlap is not None:
            if learner.early.touched():
                step.touched = "gradients were changed between job.backward and job.step"
            sending = _send(step, learner)
        overlaps = closures is None and _overlaps(collective, state.learners)
        verdict = self._vote(step, learner, number, clip, overlaps=overlaps, sending=sending)
        if verdict.failed:
            if sending is not None:
                sending.drop()
            self._committer.give_up(step, step.touched or verdict.failed, for_memory=verdict.ran_out)
            return False
        if verdict.learner == RESTING:  # all replicas end the step without the optimizers that have not stepped
            for each in set(range(len(state.learners))) - step.stepped:
                state.learners[each].clear()  # otherwise its next step would have gradients of this one too
            self._commit(step, Outcome(stepped=True, signals=verdict.signals, last_s=verdict.last_s), in_body=False)
            return False
        if not step.mine:  # this replica had no sample, but clips the sum as the others do
            number, learner = verdict.learner, state.learners[verdict.learner]
            clip = learner.clip_of_others(verdict.clip)
        learner.last_clip = clip
        if closures is not None and self._peers.elastic:
            self._committer.rollback.hold(learner)
        outcome = self._updater.run(
            collective,
            step,
            learner,
            verdict,
            _position(self._state, self._chosen, step),
            with_metrics=len(state.learners) == 1,
            frozen=not self._trains(state.steps),
            clip=clip,
            closure=None if closures is None else lambda: self._evaluate(step, learner, number, verdict),
            report=self._committer.record().set_loss if number == 0 else _ignore,
            sending=sending,
        )
        learner.clear()
        if collective.size > 1:
            learner.early.follow_votes(verdict.overlaps, collective, on_host=verdict.on_host)
        if not outcome.stepped:
            self._committer.skip(step, outcome)
            return False
        assert self._chosen is not None
        self._committer.updated(step, self._chosen, number, outcome)
        if len(step.stepped) == len(state.learners):
            self._memory.fitted(step.plan.micro_batch)
            self._commit(step, outcome)
        return True

    def _vote(
        self,
        step: StepInProgress,
        learner: Learner | None,
        number: int,
        clip: Clip | None,
        *,
        overlaps: bool = False,
        sending: Sending | None = None,
    ) -> Verdict:
        verdict = self._updater.vote(
            self._peers.collective,
            step,
            learner,
            number,
            self._signals(step.plan.global_batch),
            0.0 if learner is None else self._committer.last_s,
            self._memory.limit,
            clip,
            overlaps=overlaps,
            gather=None if sending is None else sending.gather,
        )
        self._state.pace.agree_on_memory(verdict.fits)
        return verdict

    def _evaluate(self, step: StepInProgress, learner: Learner, number: int, verdict: Verdict) -> Tensor:
        """The loss and gradient of the whole step, for an optimizer that asks for them again."""
        learner.clear()
        before, step.taken = (step.index, step.backwards, step.weight), set()
        for index, closure, inputs in step.closures[number]:
            step.index, step.backwards, step.weight = index, 0, None
            with torch.enable_grad():
                closure(*inputs)
            if step.backwards == 0:
                raise LoopError("the closure did not call job.backward(loss). Call it in place of loss.backward().")
            _take(step, learner, index, sends=False)
        step.index, step.backwards, step.weight = before
        return self._updater.evaluate(self._peers.collective, step, learner, verdict)

    def _commit(self, step: StepInProgress, outcome: Outcome, *, in_body: bool = True) -> None:
        assert self._chosen is not None
        self._committer.commit(step, self._chosen, outcome, in_body=in_body)
        self._after = outcome.signals, self._peers.generation

    def _give_up_together(self, step: StepInProgress) -> None:
        try:
            sending = _send(step, self._state.learners[0])
            verdict = self._vote(step, None, FOLLOWING, None, sending=sending)
            if sending is not None:
                sending.drop()
        except WorldError as error:
            self._recover(step, error)
        else:
            reason = step.spoiled if step.spoiled and not step.ran_out else verdict.failed
            self._committer.give_up(step, reason, for_memory=verdict.ran_out)


def _overlaps(collective: Collective, learners: Sequence[Learner]) -> bool:
    """Whether gradients can be summed while they are computed: by several replicas, of one optimizer, as a whole."""
    able = collective.size > 1 and getattr(collective, "overlaps", False)
    return able and len(learners) == 1 and not learners[0].sharded


def _send(step: StepInProgress, learner: Learner) -> Sending | None:
    """Send the rest of the gradients, before the vote that travels beside them; None where they are sent after it."""
    if learner.early.overlap is None:
        return None
    return learner.send(measured=step.measured)


def _take(step: StepInProgress, learner: Learner, index: int, *, sends: bool = True) -> None:
    """Add the micro-batch's gradients to the step's sum: where autograd put them, unless they are measured."""
    last = index >= len(step.mine) - 1
    micro = step.mine[index]
    multiplier = micro.weight if not step.weighted else (step.weight or 0.0) / step.plan.global_batch
    if last and sends and learner.early.overlap is not None:  # they are sent from where they are, or were already
        preconditioned = step.measured and learner.wants_preconditioned
        learner.early.passed(Pass(multiplier, step.measured, preconditioned, micro.size), passes=step.backwards)
        return
    if not step.measured and not step.foreign and learner.gradients.leave(last=last):
        return
    learner.gradients.take(
        multiplier=multiplier,
        measure=step.measured,
        preconditioned=learner.wants_preconditioned,
        round_weight=step.round_weight(index),
        samples=micro.size,
    )


def _check_gradients(step: StepInProgress, learners: Sequence[Learner]) -> None:
    """Refuse an update to which the backward passes of this replica have contributed nothing at all.

    Not where an optimizer works by closure or has stepped already, nor where this replica's samples count for nothing,
    nor where the step is done again anyway.
    """
    if step.closures or step.stepped or step.touched is not None:
        return
    for learner in learners:
        if not learner.gradients.empty:
            return
    if any(micro.weight > 0 for micro in step.mine):
        step.spoiled = "no parameter has a gradient"
        raise LoopError(
            "job.step cannot update the weights, because none of the optimizers' parameters has a gradient; nothing "
            "was committed. Compute the loss with the model that was given to job.wrap, make the optimizer from that "
            "model's own parameters, and leave out optimizer.zero_grad() between job.backward and job.step: the job "
            "clears gradients itself."
        )


def _ignore(loss: float | None) -> None:
    """The loss of an optimizer that is not the first is not logged."""


def _position(state: RunState, chosen: Chosen | None, step: StepInProgress) -> Position:
    assert chosen is not None
    pace, samples = state.pace, state.ledger.samples
    return Position(
        scale=chosen.base_steps * pace.part_followed(chosen.batch),
        progress=pace.progress,
        samples=samples,
        samples_between=samples - state.marks.measured_at + step.plan.global_batch,
        batch=chosen.batch,
        step=pace.step,
        patient=pace.by_clock or not pace.follows_noise,
    )
