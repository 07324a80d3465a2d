"""What cannot be right in a run whose batch and workers change, refused with the reason and the way out."""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging
from lightning.pytorch.plugins import DoublePrecision, HalfPrecision, MixedPrecision, Precision
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import IterableDataset

from swell.errors import ConfigError

_PRECISIONS = (Precision, MixedPrecision, HalfPrecision, DoublePrecision)


def check_trainer(trainer: Trainer, module: LightningModule) -> None:
    """Refuse settings of the Trainer and hooks of the module that the job would have to guess the meaning of."""
    _check_module(module)
    if trainer.accumulate_grad_batches != 1:
        raise ConfigError(
            f"accumulate_grad_batches is {trainer.accumulate_grad_batches}; expected 1, because swell accumulates: the "
            f"strategy's batch= is the global batch of a step, and the loader's batch_size what fits at once. Leave it "
            f"out, and give batch={trainer.accumulate_grad_batches} times the loader's batch_size for the same step."
        )
    if trainer.overfit_batches:
        raise ConfigError(
            f"overfit_batches is {trainer.overfit_batches}; expected 0, because it replaces the loader's order. Give "
            f"the Trainer a small data set instead: torch.utils.data.Subset(data, range(100))."
        )
    if trainer.fast_dev_run or trainer.limit_train_batches != 1.0:
        setting = "fast_dev_run" if trainer.fast_dev_run else "limit_train_batches"
        raise ConfigError(
            f"{setting} is {getattr(trainer, setting)}; expected to train on whole epochs, because a batch is not a "
            f"fixed number of samples. Give a smaller data set, or end the run with max_steps."
        )
    if trainer.reload_dataloaders_every_n_epochs:
        raise ConfigError(
            f"reload_dataloaders_every_n_epochs is {trainer.reload_dataloaders_every_n_epochs}; expected 0, because "
            f"one run counts the samples of one data set. Leave it out; the policy changes the batch without it."
        )
    if trainer.ckpt_path is not None:
        raise ConfigError(
            f"ckpt_path is {trainer.ckpt_path}; expected none, because the strategy's run folder resumes the run by "
            f"itself, on any number of workers. Leave it out; to start from weights, load them into the module."
        )
    _check_callbacks(trainer)
    check_precision(trainer.precision_plugin)


def _check_module(module: LightningModule) -> None:
    if not module.automatic_optimization:
        raise ConfigError(
            "automatic_optimization is False; expected True, because the job decides when the optimizer steps. Write "
            "the loop with Fabric: Fabric(strategy=swell.lightning.Strategy(...)) keeps your own calls."
        )
    for hook, way_out in (
        ("backward", "Leave it out; the job weighs the loss and runs the backward pass."),
        ("lr_scheduler_step", "Leave it out, or give a torch.optim.lr_scheduler; the job steps it by progress."),
    ):
        if is_overridden(hook, module, parent=LightningModule):
            raise ConfigError(
                f"{type(module).__name__} overrides {hook}, which is not called under swell.lightning.Strategy; "
                f"expected the one of LightningModule. {way_out}"
            )


def _check_callbacks(trainer: Trainer) -> None:
    for callback in trainer.callbacks:
        if isinstance(callback, GradientAccumulationScheduler):
            raise ConfigError(
                "callbacks has a GradientAccumulationScheduler; expected none, because a policy moves the batch. Give "
                "the strategy batch=swell.Schedule(...) or swell.Ramp(...)."
            )
        if isinstance(callback, StochasticWeightAveraging):
            raise ConfigError(
                "callbacks has a StochasticWeightAveraging; expected none, because it replaces schedulers and weights "
                "that the job saves. Average weights in a callback of your own, with a state_dict."
            )


def check_precision(plugin: Any) -> None:
    """Refuse precision plugins of other engines, which run backward passes and optimizers themselves."""
    if type(plugin) not in _PRECISIONS:
        raise ConfigError(
            f"the precision plugin is a {type(plugin).__name__}; expected 32, 64, 16 or bf16, true or mixed, because "
            f"DeepSpeed, FSDP and other engines keep gradients of their own. Use swell.lightning.Strategy without them."
        )


def check_optimizers(optimizers: list[Any], configs: list[Any]) -> None:
    """Refuse several optimizers, and schedulers that count in a unit of their own."""
    if len(optimizers) != 1:
        raise ConfigError(
            f"configure_optimizers returned {len(optimizers)} optimizers; expected one, because a step of the global "
            f"batch is one update. Use swell.Job itself for several: job.wrap(model, optimizer) for each."
        )
    if len(configs) > 1:
        raise ConfigError(
            f"configure_optimizers returned {len(configs)} schedulers; expected at most one. Join them with "
            f"torch.optim.lr_scheduler.ChainedScheduler or SequentialLR."
        )
    for config in configs:
        plateau = isinstance(config.scheduler, ReduceLROnPlateau)
        if config.frequency != 1 or (plateau and config.interval != "epoch"):
            raise ConfigError(
                f"the scheduler has interval {config.interval!r} and frequency {config.frequency}; expected frequency 1"
                f"{' and interval epoch' if plateau else ''}, because steps differ in size. Write the frequency into "
                f"the scheduler."
            )


def check_training_loader(loader: Any) -> None:
    """Refuse streams: Lightning must know an epoch's last batch before it is over."""
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        raise ConfigError(
            "the training data is an IterableDataset; expected a data set with a length, because Lightning asks which "
            "batch is an epoch's last, and the end of a stream is not known. Use Fabric, whose loop is your own."
        )


def validation_interval(
    interval: Any, *, seconds: float | None, steps_of_epoch: int, fixed: bool
) -> dict[str, float] | None:
    """After what to validate within an epoch, as arguments of ``job.every``; None for the epoch's end alone."""
    if seconds is not None:
        return {"seconds": seconds}
    if isinstance(interval, int):
        return {"steps": interval}
    if interval == 1.0:
        return None
    if not fixed:
        raise ConfigError(
            f"val_check_interval is {interval}; expected 1.0, a number of steps or a time, because an epoch has no "
            f"fixed number of steps while the batch moves. Give for example val_check_interval=500."
        )
    return {"steps": max(1, int(steps_of_epoch * interval))}
