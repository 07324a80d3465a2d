"""One optimizer update from votes to weights: agree, exchange, measure, scale, step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from swell.core.protocols import Collective
from swell.core.types import Factors, Plan
from swell.errors import LossError
from swell.gradients.host_figures import HostFigures
from swell.job.gradient_noise import Reading
from swell.job.learner import Clip, Learner, is_regular, merged_codes
from swell.job.sending import Sending
from swell.job.vote import NO_SIGNALS, Gather, Signals, Verdict, Vote, alone, as_number, hold
from swell.loop.metrics import Metrics, agreed_names
from swell.loop.step import Phase, StepInProgress


class Position(NamedTuple):
    """Where the run stands before the update."""

    scale: float
    progress: float
    samples: int
    samples_between: int  # since the last measured step, this one included
    batch: int  # what the policy chose; the last step of an epoch may have fewer samples
    step: int = 0
    patient: bool = False  # whether nothing depends on the step at which a loss arrives from the device


class Outcome(NamedTuple):
    """What came of an update."""

    stepped: bool
    reason: str = ""  # why not
    redo: bool = True  # whether its samples come again
    factors: tuple[Factors, ...] = ()
    gain: float = 1.0
    signals: Signals = NO_SIGNALS  # what waits for the moment after the step
    last_s: float = 0.0  # how long the step before took on its slowest replica


class Updater:
    """Makes the update of one learner after another; keeps nothing between steps."""

    def __init__(self, metrics: Metrics, device: torch.device, *, nonfinite: str, exact: bool) -> None:
        self._metrics, self._device = metrics, device
        self._nonfinite, self._exact = nonfinite, exact

    def vote(
        self,
        collective: Collective,
        step: StepInProgress,
        learner: Learner | None,
        number: int,
        signals: Signals,
        last_s: float,
        fits: float,
        clip: Clip | None = None,
        *,
        overlaps: bool = False,
        gather: Gather | None = None,
    ) -> Verdict:
        """Exchange votes: how this replica's part of the step went, and how the others' did.

        ``overlaps`` if this replica can sum gradients while it computes them; ``gather`` is how votes travel where it
        does.
        """
        step.enter(Phase.VOTED)
        failed = step.spoiled is not None or step.touched is not None
        if collective.size == 1 and not failed:
            return alone(
                number,
                signals,
                weight=step.weight_sum,
                weighted=bool(step.weighted),
                last_s=last_s,
                fits=fits,
            )
        weighted = -1.0 if step.weighted is None else float(step.weighted)
        vote = Vote(
            learner=number,
            start=step.start,
            batch=step.plan.global_batch,
            failed=failed,
            ran_out=step.ran_out,
            irregular=_is_irregular(learner),
            weight=step.weight_sum,
            weighted=weighted,
            layout=self._metrics.layout,
            noticed=signals.noticed,
            pending=signals.pending,
            due=signals.due,
            seconds=signals.seconds,
            last_s=last_s,
            clip=as_number(clip),
            fits=fits,
            overlaps=overlaps,
            on_host=learner is not None and self._device.type == "cpu" and learner.loss.on_host,
            loss=float(learner.loss.mean()) if learner is not None and learner.early.votes_carry_loss else 0.0,
        )
        return hold(collective, vote, gather)

    def run(
        self,
        collective: Collective,
        step: StepInProgress,
        learner: Learner,
        verdict: Verdict,
        position: Position,
        *,
        with_metrics: bool,
        frozen: bool,
        clip: Clip | None,
        closure: Callable[[], Any] | None,
        report: Callable[[float | None], None],
        sending: Sending | None = None,
    ) -> Outcome:
        """Exchange, measure and step, unless the loss or the gradients forbid it.

        ``sending`` is the exchange where it was begun before the vote.
        """
        put_buffers = None
        if collective.size == 1:
            figures = learner.settle_alone(share=_share(step, verdict), measured=step.measured)
        else:
            figures, put_buffers = self._sum(collective, step, learner, verdict, sending, with_metrics=with_metrics)
        loss = self._checked_loss(figures)
        if loss is not None:
            return Outcome(stepped=False, reason=f"the loss was {loss}", redo=False)
        scale = None if learner.scaler is None else learner.unscale()
        self._read(collective, step, learner, position, figures, scale, report)
        factors, gain = learner.factors(scale=position.scale, progress=position.progress, samples=position.samples)
        if not frozen:
            learner.second_moment.follow(position.batch)
            if not learner.update(factors, clip, closure):
                return Outcome(stepped=False, reason="the gradient scaler found an overflow")
        if put_buffers is not None:
            put_buffers()
        return Outcome(True, factors=factors, gain=gain, signals=verdict.signals, last_s=verdict.last_s)

    def _sum(
        self,
        collective: Collective,
        step: StepInProgress,
        learner: Learner,
        verdict: Verdict,
        sending: Sending | None,
        *,
        with_metrics: bool,
    ) -> tuple[Tensor | float, Callable[[], None]]:
        """Sum gradients, metrics and buffers over replicas; the figures, and what puts the buffers' mean in place."""
        extras = self._pending_metrics(collective, verdict) if with_metrics else []
        if sending is not None:
            if extras:
                collective.sum_tensors(extras)
            share = _share(step, verdict)
            figures = sending.arrive(irregular=verdict.irregular, share=share)
            return verdict.loss * share if figures is None else figures, sending.put_buffers
        originals = learner.buffers.find(collective)
        buffers = [buffer.detach().clone() for buffer in originals]

        def put_buffers() -> None:
            for original, summed in zip(originals, buffers, strict=True):
                original.copy_(summed / collective.size)

        return self._exchange(collective, step, learner, verdict, [*extras, *buffers]), put_buffers

    def _read(
        self,
        collective: Collective,
        step: StepInProgress,
        learner: Learner,
        position: Position,
        figures: Tensor | float | HostFigures,
        scale: Tensor | None,
        report: Callable[[float | None], None],
    ) -> None:
        """Pass on the step's loss, or its figures, with those of a pair of steps where this one completes a pair."""
        preconditioned, batch, pair = learner.wants_preconditioned, step.plan.global_batch, None
        if learner.pairs is not None and step.plan.num_micro_batches == 1:
            pair = learner.pairs.see(
                step=position.step, samples=position.samples, batch=batch, preconditioned=preconditioned
            )
        urgent = step.measured or pair is not None or collective.size > 1 or not position.patient
        if pair is None and not step.measured:
            learner.noise.pass_loss(figures, report, urgent=urgent, stays=learner.loss.stays)
            return
        if isinstance(figures, HostFigures) and not step.measured:
            figures = learner.loss.mean()
        small_batches = _compared(learner, step.plan) if step.measured else 0
        if pair is not None:
            small_batches, batch, step.paired = 2, 2 * batch, True
        reading = Reading(
            num_micro_batches=small_batches,
            batch=batch,
            samples_between=position.samples_between,
            num_groups=learner.gradients.num_groups,
            report=report,
            urgent=urgent,
        )
        learner.read(figures, scale, preconditioned=preconditioned, reading=reading, pair=pair)

    def evaluate(self, collective: Collective, step: StepInProgress, learner: Learner, verdict: Verdict) -> Tensor:
        """Sum one more evaluation of the step's loss and gradient, for an optimizer that works by closure."""
        irregular = any([row[0] for row in collective.gather_numbers([not is_regular(learner.gradients.codes())])])
        return self._exchange(collective, step, learner, verdict._replace(irregular=irregular), [])[0]

    def _exchange(
        self,
        collective: Collective,
        step: StepInProgress,
        learner: Learner,
        verdict: Verdict,
        extras: list[Tensor],
    ) -> Tensor:
        codes = learner.gradients.codes()
        if verdict.irregular:
            codes = merged_codes(collective.gather_text(codes))
        share = _share(step, verdict)
        return learner.exchange(collective, codes, share=share, measured=step.measured, extras=extras)

    def _pending_metrics(self, collective: Collective, verdict: Verdict) -> list[Tensor]:
        names = agreed_names(self._metrics, collective, verdict.layouts)
        return self._metrics.tensors_to_sum(names, self._device)

    def _checked_loss(self, figures: Tensor | float | HostFigures) -> float | None:
        """The step's mean loss if it is not finite and steps with such a loss are skipped; raises where they are not.

        On an accelerator the loss is looked at in the step only if it decides something there; otherwise the late
        reading raises later.
        """
        if isinstance(figures, (Tensor, HostFigures)):
            if figures.is_cuda and self._nonfinite == "raise" and not self._exact:
                return None
            loss = float(figures.reshape(-1)[0]) if isinstance(figures, Tensor) else figures.value(0)
        else:
            loss = figures
        if loss == loss and abs(loss) != float("inf"):
            return None
        if self._nonfinite == "skip":
            return loss
        raise LossError(not_finite(loss))


def _is_irregular(learner: Learner | None) -> bool:
    """Whether some gradient of this replica is missing or sparse."""
    if learner is None:
        return False
    overlap = learner.early.overlap
    return not is_regular(learner.gradients.codes()) if overlap is None else overlap.irregular


def _compared(learner: Learner, plan: Plan) -> int:
    """How many gradients are compared in a measured step of this plan."""
    shards = learner.gradients.shards
    count = plan.accumulation if shards is not None and shards.by_rounds else plan.num_micro_batches
    return count if count > 1 else 0


def _share(step: StepInProgress, verdict: Verdict) -> float:
    """What sums with explicit weights are still to be multiplied by."""
    return step.plan.global_batch / verdict.weight if verdict.weighted and verdict.weight > 0 else 1.0


def not_finite(loss: float) -> str:
    """The error message for a loss that is not finite."""
    return (
        f"the mean loss of this step is {loss}; expected a finite number. The step was not committed. Lower the "
        f"learning rate, look at the batch that caused it, or pass nonfinite='skip' to swell.Job to pass over such "
        f"steps with a line in the log."
    )
