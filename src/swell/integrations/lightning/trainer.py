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
from torchmetrics import Metric

from swell.errors import ConfigError
from swell.integrations.lightning.callback_states import CallbackStates
from swell.integrations.lightning.loops import Loops, run_before_step
from swell.integrations.lightning.passes import Passes
from swell.integrations.lightning.refusals import (
    check_optimizers,
    check_trainer,
    check_training_loader,
    validation_interval,
)
from swell.integrations.lightning.replica import Replica

Value = TypeVar("Value")
NEVER = 2**62  # batches between two steps of a scheduler that the job steps


class TrainerStrategy(Replica, SingleDeviceStrategy):
    """Lets ``Trainer`` train one module with one optimizer on whatever workers there are.

    To Lightning each worker is alone, so that it starts no exchange of its own: workers have different numbers of
    batches in a step, and come and go. Validation runs whole on every worker, and the first one's decisions count.
    """

    _layer_sync: Any = None  # Lightning puts sync_batchnorm's here

    def _prepare_trainer(self) -> None:
        TrainerBase.__init__(self)
        self._loops: Loops | None = None
        self._passes: Passes | None = None

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
            _keep_metrics_local(self.lightning_module)
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
        """The training loader becomes the job's; others stay as they are, whole on every worker."""
        if not self._trainer.training:
            return dataloader
        check_training_loader(dataloader)
        training = self._begin_job(dataloader)
        assert self._loops is not None
        self._passes = Passes(self.job, training, self._loops)
        self._begin()
        return self._passes

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


def _keep_metrics_local(module: LightningModule) -> None:
    """Let torchmetrics exchange nothing: every worker validates all samples, and would count them once for each other.

    Its exchange would also use the group that is formed again when a worker is lost.
    """
    for part in module.modules():
        if isinstance(part, Metric):
            part.sync_on_compute = False
