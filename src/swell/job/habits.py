"""Habits of plain scripts that are wrong in a job: refused where they surely are, told once where they seem to be."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from swell.core.types import Plan
from swell.errors import LoopError
from swell.job.gradient_watch import Change
from swell.job.learner import Learner
from swell.job.loss_graph import divided_by_hand, sums_samples
from swell.job.peers import Peers
from swell.job.scaler_watch import scaled_by_script, unscaled_by_script
from swell.job.script_line import script_level
from swell.loop.pace import Pace
from swell.loop.step import StepInProgress

LOOKS = 16  # losses that are looked at in the beginning; a habit shows in every one of them
_CLIP_IN_STEP = (
    "Clip with job.step(clip=1.0). To change gradients in another way, give job.step(clip=function): it is called with "
    "the parameters when the gradient of the whole step is there. Call neither loss.backward() nor scaler.unscale_() "
    "beside job.backward."
)


class Habits:
    """Looks at what the user's code does around a backward pass; every warning comes once in a process."""

    def __init__(self, pace: Pace, peers: Peers) -> None:
        self._pace, self._peers = pace, peers
        self._told: set[str] = set()
        self._looks = 0

    def before_backward(
        self, step: StepInProgress, loss: Tensor, learners: Sequence[Learner], *, weighted: bool
    ) -> None:
        """Look at the batch, the loss and the models; ``weighted`` if the script says how much the loss counts."""
        if step.left_out and not weighted:
            asked = step.mine[step.index].size
            raise LoopError(
                f"the batch has {asked - step.left_out} rows; expected {asked}, one for each sample that was asked "
                "for, because the batch counts by its samples. Let collate_fn keep every sample, or pass "
                "job.backward(loss, weight=...) with what the loss is a mean over, the rows of the batch."
            )
        for learner in learners:
            if learner.scaler is not None and scaled_by_script(learner.scaler, loss):
                raise LoopError(
                    "the loss given to job.backward was scaled by the script; expected the loss itself, because "
                    "job.backward scales it by the scaler that job.wrap was given. Call job.backward(loss) without "
                    "scaler.scale, and leave out scaler.unscale_, scaler.step and scaler.update."
                )
            if not learner.model.training:
                self._look_at_mode(learner.model)
        if self._looks < LOOKS:
            self._looks += 1
            self._look_at_loss(loss, step.plan, samples=step.mine[step.index].size, weighted=weighted)

    def before_step(self, step: StepInProgress, learner: Learner) -> None:
        """Refuse gradients of a part of the step that the script has changed; warn if they are those of all of it.

        Gradients that the script has unscaled are refused anyway.
        """
        if learner.scaler is not None and unscaled_by_script(learner.scaler, learner.optimizer):
            step.spoiled = "its gradients were unscaled"
            raise LoopError(
                "scaler.unscale_() was called between job.backward and job.step; expected only job.step to call it, "
                "because gradients would be divided by the scale twice, and nothing of the step was committed. "
                f"{_CLIP_IN_STEP}"
            )
        change = learner.touched.change()
        if change is Change.NONE:
            return
        part = f"{step.mine[step.index].size} of the step's {step.plan.global_batch} samples"
        if change is Change.GONE:
            step.spoiled = "its gradients were cleared"
            raise LoopError(
                f"the gradients that job.backward left for {part} are gone at job.step; expected them there, and "
                "nothing of the step was committed. Leave out optimizer.zero_grad() between job.backward and job.step: "
                "the job clears gradients itself."
            )
        if step.plan.num_micro_batches > 1:
            step.spoiled = "its gradients were changed"
            raise LoopError(
                f"a gradient was changed between job.backward and job.step, where it is that of {part}; expected it "
                f"unchanged, and nothing of the step was committed. {_CLIP_IN_STEP}"
            )
        if self._is_free(step.plan):
            self._tell(
                "touched",
                "a gradient was changed between job.backward and job.step. That is right only while a step is a single "
                f"micro-batch on one replica, and is refused when it is not. {_CLIP_IN_STEP}",
            )

    def after_step(self, step: StepInProgress) -> None:
        """Warn if an optimizer that was named in ``job.backward`` had a part of the step, or did not take it."""
        for number, indices in step.named.items():
            taken = number in step.stepped or number in step.taken
            if not step.abandoned and (len(indices) < len(step.mine) or not taken):
                rest = "" if taken else ", which job.step did not take after the last one"
                self._tell(
                    "part",
                    f"job.backward named an optimizer in {len(indices)} of the step's {len(step.mine)} micro-batches"
                    f"{rest}; expected all of them, and job.step for it after each, or none. A counter in the loop "
                    "counts micro-batches: let an optimizer rest by job.steps, which stays the same for all of a step, "
                    "as in `if job.steps % 5 == 0:`. Ignore this if it is meant.",
                )

    def _is_free(self, plan: Plan) -> bool:
        """Whether this step, or a later one, is laid out in another way than as one micro-batch on one replica."""
        return plan.num_micro_batches > 1 or self._peers.elastic or not self._pace.always_base

    def _look_at_mode(self, model: nn.Module) -> None:
        if "mode" not in self._told and any(_depends_on_mode(module) for module in model.modules()):
            self._tell(
                "mode",
                f"the {type(model).__name__} is in evaluation mode in the training loop, so dropout is off and batch "
                "norm learns nothing; expected training mode. Call model.train() after evaluating, or at the top of "
                "each epoch. Ignore this if it is meant.",
            )
        self._told.add("mode")

    def _look_at_loss(self, loss: Tensor, plan: Plan, *, samples: int, weighted: bool) -> None:
        divisor = divided_by_hand(loss, {plan.accumulation, plan.num_micro_batches})
        if divisor:
            self._tell(
                "divided",
                f"the loss given to job.backward is a mean divided by {divisor}; expected the mean itself, because "
                "job.backward weighs each micro-batch by its part of the global batch. If the division is for gradient "
                f"accumulation, remove it: the gradient is {divisor} times too small. Ignore this if it is meant.",
            )
        if samples > 1 and not weighted and self._is_free(plan) and sums_samples(loss, samples):
            self._tell(
                "sum",
                f"the loss given to job.backward looks like a sum over the micro-batch's {samples} samples; expected "
                "their mean, because a sum shrinks with the micro-batch, and the step with it. Use reduction='mean' "
                f"and a learning rate for it; or give job.backward(loss * ({self._pace.base} / len(x))), which keeps "
                "the learning rate of the sum at the base batch.",
            )

    def _tell(self, habit: str, message: str) -> None:
        """Warn about a habit once, on the first replica, at the script's own line."""
        if habit not in self._told and self._peers.is_first:
            self._told.add(habit)
            warnings.warn(message, UserWarning, stacklevel=script_level())


def _depends_on_mode(module: nn.Module) -> bool:
    return isinstance(module, _NormBase) or (isinstance(module, _DropoutNd) and module.p > 0)
