"""The Trainer's half of the strategy: its loops run as they are, and ask the job when a step is complete."""

# pyright: reportMissingImports=false, reportIncompatibleMethodOverride=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins import Precision
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.strategies import Strategy as TrainerBase
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from swell.errors import ConfigError
from swell.integrations.lightning.callback_states import CallbackStates
from swell.integrations.lightning.loops import LoggedFigures, Loops, run_before_step
from swell.integrations.lightning.metric_states import keep_local, metrics_of, require_known_release
from swell.integrations.lightning.passes import Passes
from swell.integrations.lightning.refusals import (
    check_optimizers,
    check_trainer,
    check_training_loader,
    validation_interval,
)
from swell.integrations.lightning.replica import Replica
from swell.integrations.lightning.split_validation import SplitValidation, can_split
from swell.integrations.lightning.validation_figures import ValidationFigures, check_agreement
from swell.job import Job

Value = TypeVar("Value")
NEVER = 2**62  # batches between two steps of a scheduler that the job steps


class TrainerStrategy(Replica, SingleDeviceStrategy):
    """Lets ``Trainer`` train one module with one optimizer on whatever workers there are.

    To Lightning each worker is alone, so that it starts no exchange of its own: workers have different numbers of
    batches in a step, and come and go. Validation runs whole on every worker unless it is to be split, and the first
    worker's decisions count.
    """

    _layer_sync: Any = None  # Lightning puts sync_batchnorm's here

    def _prepare_trainer(self, validation: str) -> None:
        TrainerBase.__init__(self)
        self._validation_mode = validation
        self._loops: Loops | None = None
        self._passes: Passes | None = None
        self._validation: SplitValidation | None = None

    @property
    def _trainer(self) -> Trainer:
        assert self.lightning_module is not None
        return self.lightning_module.trainer

    # Setting up

    def setup(self, trainer: Trainer) -> None:
        """Check the Trainer, and let the job have the module and its optimizer."""
        fits = trainer.state.fn == TrainerFn.FITTING
        if fits:
            assert self.lightning_module is not None
            if self._run.begun and self._passes is not None and self._passes.over:
                raise ConfigError(
                    "the strategy has trained already; expected a new one for another fit, because it holds one run. "
                    "Make another Trainer with another swell.lightning.Strategy; one of the same run folder resumes it."
                )
            check_trainer(trainer, self.lightning_module)
            for metric in metrics_of(self.lightning_module).values():
                keep_local(metric)
            if self._layer_sync is not None:
                raise ConfigError(
                    "sync_batchnorm is True; expected False, because it exchanges values in every forward pass, and "
                    "workers have different numbers of them. Leave it out; statistics of batch norm are averaged."
                )
            self._loops = Loops(trainer)
        SingleDeviceStrategy.setup(self, trainer)
        if fits:
            check_optimizers(self.optimizers, self.lr_scheduler_configs)
            self._begin()

    def process_dataloader(self, dataloader: Any) -> Any:
        """The training loader becomes the job's; the validation's is split if that was asked for; others stay whole."""
        if not self._trainer.training:
            return self._split(dataloader)
        check_training_loader(dataloader)
        training = self._begin_job(dataloader)
        assert self._loops is not None
        self._passes = Passes(self.job, training, self._loops)
        self._begin()
        return self._passes

    def _split(self, loader: Any) -> Any:
        trainer = self._trainer
        fits = trainer.state.fn == TrainerFn.FITTING and trainer.limit_val_batches == 1.0
        if self._validation_mode == "whole" or not fits or not can_split(loader):
            return loader
        require_known_release()

        def together() -> Job | None:
            return self.job if self._together and len(trainer.num_val_batches) == 1 else None

        def figures() -> ValidationFigures:
            assert self.lightning_module is not None
            return ValidationFigures(self.lightning_module, LoggedFigures(trainer))

        self._validation = SplitValidation(loader, together, figures)
        return self._validation

    def _begin(self) -> None:
        """Join the run, once there are both a module with its optimizer and data."""
        if self._passes is None or not self.optimizers:
            return
        assert self._loops is not None and self.lightning_module is not None
        trainer, job = self._trainer, self.job
        scheduler, schedule = self._take_scheduler()
        scaler = getattr(self.precision_plugin, "scaler", None)
        job.wrap(self.lightning_module, self.optimizers[0], scheduler=scheduler, schedule=schedule, scaler=scaler)
        job.engine.state.learners[0].last_clip = self._before_step  # for a step in which this worker has no sample
        job.register("lightning callbacks", CallbackStates(trainer))
        interval = validation_interval(
            trainer.val_check_interval,
            seconds=self._loops.validation_s,
            steps_of_epoch=len(self._passes),
            fixed=job.engine.state.pace.always_base,
        )
        self._loops.take_over(lambda: interval is not None and job.every(**interval))  # type: ignore[arg-type]
        self._passes.begin()
        self._tell_rank()

    def _take_scheduler(self) -> tuple[Any | None, str]:
        """The scheduler for the job, which steps it; one that follows a metric is left to Lightning."""
        if not self.lr_scheduler_configs:
            return None, "progress"
        config = self.lr_scheduler_configs[0]
        if isinstance(config.scheduler, ReduceLROnPlateau):
            return config.scheduler, "manual"
        schedule = "progress" if config.interval == "step" else "epoch"
        config.frequency = NEVER
        return config.scheduler, schedule

    # The loop

    def backward(self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any) -> Tensor:
        """Add the gradient of one micro-batch's mean loss, between Lightning's hooks."""
        assert self.lightning_module is not None
        plugin, module = self.precision_plugin, self.lightning_module
        Precision.pre_backward(plugin, closure_loss, module)  # the hooks alone: the job scales the loss
        self.job.backward(closure_loss, **kwargs)
        return Precision.post_backward(plugin, closure_loss, module)

    def optimizer_step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any],
        model: LightningModule | None = None,
        **kwargs: Any,
    ) -> Any:
        """Compute one micro-batch; the weights move where that completes the global batch."""
        assert self._passes is not None
        result = closure()
        if result is None:
            raise ConfigError(
                "training_step returned None; expected a loss for every batch, because its samples count in the step. "
                "Return a loss of 0 that depends on the model: 0.0 * output.sum()."
            )
        stepped = self.job.step(clip=self._before_step)
        self._tell_rank()
        self._passes.finish_batch(stepped=stepped)
        return result

    def _before_step(self, parameters: list[Tensor]) -> None:
        assert self.lightning_module is not None
        run_before_step(self._trainer, self.lightning_module, self.optimizers[0])

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own, which gets the number of its batch among all of them."""
        number = None if self._validation is None else self._validation.batch_number
        if number is not None and len(args) > 1:
            args = (args[0], number, *args[2:])
        return SingleDeviceStrategy.validation_step(self, *args, **kwargs)

    def on_validation_end(self) -> None:
        """Refuse figures of this worker's part alone, where the validation was split."""
        if self._validation is not None and self._validation.joined and self._together:
            check_agreement(LoggedFigures(self._trainer), self.job.engine.sharing.gather_parts)
        self._tell_rank()

    @property
    def handles_gradient_accumulation(self) -> bool:
        """True: the job accumulates, so Lightning calls ``optimizer_step`` for every batch."""
        return True

    # Among the workers

    @property
    def world_size(self) -> int:
        """1 for Lightning, which would exchange values of its own otherwise; ``job.replicas`` is the number."""
        return 1

    def broadcast(self, obj: Value, src: int = 0) -> Value:
        """The first worker's value where all workers ask for it together; elsewhere this worker's own."""
        return self.job.share(lambda: obj) if self._together else obj

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """The first worker's decision: to stop early, or to save."""
        return self.broadcast(decision)

    @property
    def _together(self) -> bool:
        """Whether every worker is at this place of the run: between two steps in which all of them had samples."""
        if not self._run.begun or not self.job.engine.planner.in_turn or self.job.replicas == 1:
            return False
        step = self.job.engine.steps.current
        return step is not None and step.ended and not step.abandoned and bool(min(map(len, step.plan.shares)))

    # The end

    def on_train_end(self) -> None:
        """End the run, which saves it."""
        if self._passes is not None:
            self._passes.end()

    def teardown(self) -> None:
        """Leave the run, whatever ended it."""
        if self._run.begun:
            self._run.close()
        SingleDeviceStrategy.teardown(self)
