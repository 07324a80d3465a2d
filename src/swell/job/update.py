"""One optimizer update from votes to weights: agree, exchange, measure, scale, step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swell.core.protocols import Collective
from swell.core.types import Factors
from swell.errors import LossError
from swell.job.trainee import Clip, Measured, Trainee
from swell.job.vote import Vote, as_number, hold
from swell.loop.metrics import Metrics, agreed_names
from swell.loop.step import StepInProgress


@dataclass(frozen=True)
class Position:
    """Where the run stands before the update."""

    scale: float
    progress: float
    samples: int
    samples_between: int  # since the last measured step, this one included
    step: int = 0


@dataclass(frozen=True)
class Outcome:
    """What came of an update."""

    stepped: bool
    reason: str = ""  # why not
    redo: bool = True  # whether its samples come again
    factors: tuple[Factors, ...] = ()
    gain: float = 1.0
    noticed: bool = False
    pending: bool = False
    due: bool = False
    last_s: float = 0.0  # what the whole step before took on its slowest replica


class Updater:
    """Carries an update through for one trainee after another; keeps nothing between steps."""

    def __init__(self, metrics: Metrics, device: torch.device, *, nonfinite: str, exact: bool) -> None:
        self._metrics, self._device = metrics, device
        self._nonfinite, self._exact = nonfinite, exact

    def vote(
        self,
        collective: Collective,
        step: StepInProgress,
        trainee: Trainee | None,
        number: int,
        flags: tuple[bool, bool, bool],
        last_s: float,
        fits: float,
        clip: Clip | None = None,
    ) -> list[Vote]:
        """Tell the others how this replica fares, and hear how they do."""
        weighted = -1.0 if step.weighted is None else float(step.weighted)
        irregular = trainee is not None and not trainee.regular(trainee.codes())
        noticed, pending, due = flags
        mine = Vote(
            trainee=number,
            start=step.start,
            batch=step.plan.global_batch,
            failed=step.spoiled is not None,
            ran_out=step.ran_out,
            irregular=irregular,
            weight=step.weight_sum,
            weighted=weighted,
            layout=self._metrics.layout,
            noticed=noticed,
            pending=pending,
            due=due,
            last_s=last_s,
            clip=as_number(clip),
            fits=fits,
        )
        return hold(collective, mine)

    def run(
        self,
        collective: Collective,
        step: StepInProgress,
        trainee: Trainee,
        votes: list[Vote],
        position: Position,
        *,
        with_metrics: bool,
        frozen: bool,
        clip: Clip | None,
        closure: Callable[[], Any] | None,
        report: Callable[[float | None], None],
    ) -> Outcome:
        """Exchange, measure and step, unless the loss or the gradients forbid it."""
        extras = self._pending_metrics(collective, votes) if with_metrics and collective.size > 1 else []
        originals = synchronised_buffers(trainee.model) if collective.size > 1 else []
        buffers = [buffer.detach().clone() for buffer in originals]
        figures = self._exchange(collective, step, trainee, votes, [*extras, *buffers])
        loss = self._checked_loss(figures)
        if loss is not None:
            return Outcome(stepped=False, reason=f"the loss was {loss}", redo=False)
        scale, preconditioned, batch = trainee.unscale(), trainee.wants_preconditioned, step.plan.global_batch
        small_batches, pair = trainee.small_batches(step.plan) if step.measured else 0, None
        if trainee.pairs is not None and step.plan.num_micro_batches == 1:
            pair = trainee.pairs.see(
                step=position.step, samples=position.samples, batch=batch, preconditioned=preconditioned
            )
        if pair is not None:
            small_batches, batch, step.paired = 2, 2 * batch, True
        belongs = Measured(
            num_micro_batches=small_batches,
            batch=batch,
            samples_between=position.samples_between,
            preconditioned=preconditioned,
            num_groups=len(trainee.optimizer.param_groups),
            report=report,
        )
        trainee.read(figures, scale, step.measured, belongs, pair)
        groups, total = trainee.states(scale=position.scale, progress=position.progress, samples=position.samples)
        factors = tuple(trainee.rule.factors(state) for state in groups)
        if not frozen and not trainee.update(factors, clip, closure):
            return Outcome(stepped=False, reason="the gradient scaler found an overflow")
        for original, summed in zip(originals, buffers, strict=True):
            original.copy_(summed / collective.size)
        return Outcome(
            stepped=True,
            factors=factors,
            gain=trainee.rule.gain(total),
            noticed=any(vote.noticed for vote in votes),
            pending=any(vote.pending for vote in votes),
            due=bool(votes[0].due),
            last_s=max(vote.last_s for vote in votes),
        )

    def evaluate(self, collective: Collective, step: StepInProgress, trainee: Trainee, votes: list[Vote]) -> Tensor:
        """Sum one more evaluation of the step's loss and gradient, for an optimizer that works by closure."""
        irregular = any(row[0] for row in collective.gather_numbers([not trainee.regular(trainee.codes())]))
        votes = [dataclasses.replace(vote, irregular=irregular) for vote in votes]
        return self._exchange(collective, step, trainee, votes, [])[0]

    def _exchange(
        self,
        collective: Collective,
        step: StepInProgress,
        trainee: Trainee,
        votes: list[Vote],
        extras: list[Tensor],
    ) -> Tensor:
        codes = trainee.codes()
        if any(vote.irregular for vote in votes):
            codes = trainee.merge_codes(collective.gather_text(codes))
        total = sum(vote.weight for vote in votes)
        weighted = any(vote.weighted > 0 for vote in votes)
        share = step.plan.global_batch / total if weighted and total > 0 else 1.0
        return trainee.exchange(collective, codes, share=share, measured=step.measured, extras=extras)

    def _pending_metrics(self, collective: Collective, votes: list[Vote]) -> list[Tensor]:
        names = agreed_names(self._metrics, collective, [int(vote.layout) for vote in votes])
        return self._metrics.tensors_to_sum(names, self._device)

    def _checked_loss(self, figures: Tensor) -> float | None:
        """The step's mean loss if it is not finite and steps with such a loss are skipped; raises where they are not.

        On an accelerator the loss is looked at in the step only if it decides something there; otherwise the late
        reading raises one step later.
        """
        if figures.device.type == "cuda" and self._nonfinite == "raise" and not self._exact:
            return None
        loss = float(figures[0])
        if loss == loss and abs(loss) != float("inf"):
            return None
        if self._nonfinite == "skip":
            return loss
        raise LossError(not_finite(loss))


def not_finite(loss: float) -> str:
    """What to tell a user whose loss broke."""
    return (
        f"the mean loss of this step is {loss}; expected a finite number. The step was not committed. Lower the "
        f"learning rate, look at the batch that caused it, or pass nonfinite='skip' to swell.Job to pass over such "
        f"steps and say so."
    )


def synchronised_buffers(model: torch.nn.Module) -> Sequence[Tensor]:
    """The floating-point buffers, such as batch-norm statistics, that replicas average in each step."""
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]
