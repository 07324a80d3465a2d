"""One run behind an accelerator: its job, made from what the script prepares, and its passes over the data."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer

from swell.errors import ConfigError, LoopError
from swell.job import Job
from swell.job.loader import TrainingLoader
from swell.runtime.at_exit import AtExit


class TrainingRun:
    """Collects model, optimizer, scheduler and data, and starts when the script first iterates the training data.

    The script's own loop counts epochs: its n-th pass over the data is the run's n-th epoch, and a pass that was made
    before this process was there is empty. ``follow`` is called where the world may have changed.
    """

    def __init__(self, *, epochs: int | None, schedule: str, scaler: Any, follow: Callable[[], None]) -> None:
        self._epochs, self._schedule, self._scaler, self._follow = epochs, schedule, scaler, follow
        self.job: Job | None = None
        self.model: nn.Module | None = None
        self.optimizer: Optimizer | None = None
        self.scheduler: Any | None = None
        self._loader: TrainingLoader | None = None
        self._turns: Iterator[int] | None = None
        self._turn: int | None = None  # the run's epoch
        self._passes, self._passed = 0, False  # passes of the script, and whether it made one over that epoch
        self.training = False  # whether the script is in its loop over the training data
        self._clips: list[Callable[[list[Tensor]], None]] = []
        self._norm = torch.zeros(())  # of the latest gradient that was clipped

    def take_data(self, job: Job, loader: TrainingLoader) -> None:
        """The job and its loader, once the training data are known."""
        self.job, self._loader = job, loader
        job.engine.hooks.before_step = self._follow
        self._end = AtExit(self.close)

    @property
    def is_last(self) -> bool:
        """Whether the micro-batch under way completes the step on this replica; True outside the loop."""
        step = None if self.job is None else self.job.engine.steps.current
        return step is None or not self.training or step.is_last

    def batches(self) -> Iterator[Any]:
        """The micro-batches of the script's next pass."""
        job, loader = self._started()
        number, self._passes = self._passes, self._passes + 1
        if self._passed:
            self._turn, self._passed = next(self._turns or iter(()), None), False
        if self._turn is None or number < self._turn:
            return
        self._passed, self.training = True, True
        try:
            batches = iter(loader)
            while held := list(islice(batches, 1)):  # which is emptied, so that the batch is the script's alone
                self._clips = []
                yield held.pop()
                step = job.engine.steps.current
                if step is None or step.ended or step.taken or not step.backwards:
                    continue
                if step.is_last:
                    raise LoopError(
                        f"optimizer.step() was not called after the last batch of a step ({len(step.mine)} of "
                        f"{step.mine[0].size} samples or fewer); expected it before the next batch. Call it after "
                        "every accelerator.backward(loss), in `with accelerator.accumulate(model):`, and leave out a "
                        "loop that accumulates by hand: gradient_accumulation_steps says how many batches a step has, "
                        "and the last step of an epoch may have fewer. Nothing of this step was committed."
                    )
                job.step()  # a script that steps only where gradients are complete
        finally:
            self.training = False

    def _started(self) -> tuple[Job, TrainingLoader]:
        if self.job is None or self._loader is None or self.model is None or self.optimizer is None:
            raise LoopError(
                "the training data were iterated before everything was prepared; expected model, optimizer and data. "
                "Call accelerator.prepare(model, optimizer, train_loader) before the loop."
            )
        if self._turns is None:
            schedule = {"scheduler": self.scheduler, "schedule": self._schedule} if self.scheduler is not None else {}
            self.job.wrap(self.model, self.optimizer, scaler=self._scaler, **schedule)
            engine = self.job.engine
            self._turns = self.job.epochs(self._epochs) if self._epochs is not None else engine.epochs.endless()
            self._turn = next(self._turns, None)
            self._follow()
        return self.job, self._loader

    def backward(self, loss: Tensor, weight: Any, options: dict[str, Any]) -> None:
        """The gradient of one micro-batch's mean loss, weighted by its part of the step."""
        if self.job is None:
            raise LoopError("accelerator.backward was called before accelerator.prepare. Prepare the data first.")
        self.job.backward(loss, weight=weight, **options)

    def step(self) -> bool:
        """Finish the micro-batch; whether the weights were updated."""
        if self.job is None:
            raise LoopError("optimizer.step() was called before the training data were prepared.")
        return self.job.step(clip=self._clip if self._clips else None)

    def clip_norm(self, parameters: Any, max_norm: float, norm_type: float) -> Tensor:
        """Clip the whole step's gradient in its update; returns its norm, which is filled in there."""
        kept = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        norm = self._norm = self._norm.to(kept[0], copy=True)  # until then that of the step before

        def clip(_: list[Tensor]) -> None:
            norm.copy_(clip_grad_norm_(kept, max_norm, norm_type))

        self._clips.append(clip)
        return norm

    def clip_value(self, parameters: Any, value: float) -> None:
        """Clip each element of the whole step's gradient in its update."""
        kept = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        self._clips.append(lambda _: clip_grad_value_(kept, value))

    def _clip(self, parameters: list[Tensor]) -> None:
        for clip in self._clips:
            clip(parameters)

    def save(self) -> None:
        """Save the run: now between two passes, where all replicas come by, and otherwise after the next step."""
        if self.job is None or self._turns is None:
            raise LoopError("there is nothing to save yet: save_state was called before the training loop.")
        if self.training:
            self.job.engine.saving.requested = True
        else:
            self.job.save()

    def end(self) -> None:
        """The script is through: save and close."""
        if self.job is not None and self._turns is not None and not self.job.engine.epochs.over:
            if self._passed:
                self._turn, self._passed = (next(self._turns, None), False) if self._epochs else (self._turn, False)
            if not self.job.engine.epochs.over:
                self.job.save()
        self.close()

    def close(self) -> None:
        """Leave the world; may be called twice."""
        if self.job is not None:
            self._end.cancel()
            self.job.close()


def refuse_second(kind: str) -> None:
    """Refuse what a run has one of."""
    raise ConfigError(
        f"a second {kind} was given to accelerator.prepare; expected one, because the job steps one optimizer of one "
        "model. Write the loop with swell.Job, which takes several."
    )
