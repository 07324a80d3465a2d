"""What cannot be right under a job, refused before it trains."""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

from swell.errors import ConfigError

# Trainers that make their own training data with the model while they train, by the names of their classes.
GENERATE = frozenset(
    [
        "GRPOTrainer",
        "RLOOTrainer",
        "PPOTrainer",
        "OnlineDPOTrainer",
        "NashMDTrainer",
        "XPOTrainer",
        "AsyncGRPOTrainer",
        "DistillationTrainer",
        "AsyncDistillationTrainer",
        "GKDTrainer",
        "GOLDTrainer",
        "SDPOTrainer",
        "SDFTTrainer",
        "IWOPDTrainer",
        "A2POTrainer",
    ]
)


def refuse_generating(kind: type) -> None:
    """Refuse trainers whose steps read what earlier steps have generated."""
    named = [base.__name__ for base in kind.__mro__ if base.__name__ in GENERATE]
    if named:
        raise ConfigError(
            f"{kind.__name__} is a {named[0]}; expected a trainer that reads its samples from a data set, such as "
            "Trainer, SFTTrainer, DPOTrainer or RewardTrainer. It generates its samples with the model, keeps them for "
            "a number of steps and counts those steps itself, so another batch or another number of workers would "
            f"train on other samples. Use the plain {named[0]}, or write the loop with swell.Job and job.share."
        )


def refuse_arguments(args: Any, *, batch_given: bool) -> None:
    """Refuse training arguments that mean something else here, or nothing."""
    _refuse_parallelism(args)
    if batch_given and args.gradient_accumulation_steps > 1:
        raise ConfigError(
            f"gradient_accumulation_steps is {args.gradient_accumulation_steps} and batch is given; expected one of "
            "them, because the batch says how many samples a step has and the job accumulates what does not fit at "
            "once. Leave gradient_accumulation_steps out; per_device_train_batch_size is what one worker computes at "
            "once."
        )
    if args.auto_find_batch_size:
        raise ConfigError(
            "auto_find_batch_size is True; expected False, because it starts the run again with another batch. Lower "
            "per_device_train_batch_size, which changes no step."
        )
    sampling = str(getattr(args.train_sampling_strategy, "value", args.train_sampling_strategy))
    if sampling not in ("random", "sequential"):
        raise ConfigError(
            f"train_sampling_strategy is {sampling!r}; expected 'random' or 'sequential', because the order of samples "
            "is a function of seed and epoch alone, and not of the batch. Sort or pack the data set instead."
        )
    if "lomo" in str(getattr(args.optim, "value", args.optim)):
        raise ConfigError(
            f"optim is {args.optim!s}; expected an optimizer with a step of its own. LOMO updates the weights inside "
            "the backward pass, before the gradient of the whole step is there. Use adafactor or another optimizer."
        )
    if getattr(args, "enable_jit_checkpoint", False):
        raise ConfigError(
            "enable_jit_checkpoint is True; expected False, because it saves on each worker by a clock of its own. "
            "Leave it out: a run saves when it is told to stop (SIGTERM), on all workers after the same step."
        )


def _refuse_parallelism(args: Any) -> None:
    ways = {
        "deepspeed": args.deepspeed,
        "fsdp": args.fsdp,
        "parallelism_config": getattr(args, "parallelism_config", None),
        "accelerator_config.split_batches": args.accelerator_config.split_batches,
        "accelerator_config.dispatch_batches": args.accelerator_config.dispatch_batches,
    }
    for name, value in ways.items():
        if value:
            raise ConfigError(
                f"{name} is {value!r}; expected none, because swell exchanges gradients and divides the samples "
                f"itself, and every worker holds the whole model. Leave it out."
            )


def refuse_devices(args: Any, *, elastic: bool) -> None:
    """Refuse several GPUs in one process; under ``swell run`` each worker takes its own."""
    if args.n_gpu > 1 and not elastic:
        raise ConfigError(
            f"this process sees {args.n_gpu} GPUs; expected one, because transformers would copy the model to all of "
            "them in one process. Start one worker for each GPU: swell run --workers N train.py, or torchrun "
            "--nproc-per-node N train.py; for one worker set CUDA_VISIBLE_DEVICES to one GPU."
        )
