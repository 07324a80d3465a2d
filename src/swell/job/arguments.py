"""Checks of what a user gives to a job, before anything is built on it."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler

from swell.checkpoint.cadence import Cadence
from swell.core.early_stopping import EarlyStopping
from swell.errors import ConfigError, LossError
from swell.runtime.environment import Environment
from swell.supervisor.run_dir import RunDir

FEW_SAMPLES = 4  # tensors in a tuple that are rather the parts of a data set than its samples


def as_cadence(save: Any) -> Cadence:
    """When checkpoints are due, by what ``swell.Job(save=...)`` was given."""
    if isinstance(save, Cadence):
        return save
    if save is None:
        return Cadence()
    if isinstance(save, Real) and not isinstance(save, bool) and float(save) > 0:
        return Cadence(every_s=float(save))
    raise ConfigError(
        f"save is {save!r}; expected the seconds between two checkpoints (a number above 0), a swell.Cadence, or None. "
        f"Give save=300 for one every five minutes, save=swell.Cadence(every_steps=1000) to count steps, or save=None "
        f"to save only when the script calls job.save()."
    )


def check_place(run_dir: Any, device: Any) -> None:
    """Refuse what is no folder, or no device."""
    if run_dir is not None and not isinstance(run_dir, (str, os.PathLike)):
        raise ConfigError(
            f"run_dir is {run_dir!r}, a {type(run_dir).__name__}; expected the path of the run's folder. Give "
            f"text such as 'runs/digits', a pathlib.Path, or None to keep nothing."
        )
    try:
        torch.device("cpu" if isinstance(device, str) and device == "auto" else device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"device is {device!r}; expected 'auto', a device that torch knows such as 'cpu', 'cuda' or 'cuda:0', or a "
            f"torch.device. Leave it out to use the GPU where there is one."
        ) from error


def run_folder(run_dir: Any, environment: Environment) -> Path | None:
    """The run's folder: the script's, or else that of ``swell run --run-dir``; two different ones are refused.

    Where the user left the folder to ``swell run``, the script's own is made known to its commands.
    """
    supervised = None if environment.swell_run_dir is None else Path(environment.swell_run_dir)
    given = supervised if environment.swell_run_dir_given else None
    if run_dir is None:
        return given
    own = Path(run_dir)
    if given is not None and own.resolve() != given.resolve():
        raise ConfigError(
            f"run_dir is {str(own)!r}, and `swell run --run-dir` gives {str(given)!r}; expected one folder for the "
            f"run. Leave out one of the two: swell.Job takes the folder of --run-dir, and the commands find a run by "
            f"the folder of its job."
        )
    if environment.supervised and supervised is not None and own.resolve() != supervised.resolve():
        RunDir(supervised).connect(own)
    return own


def check_fresh(fresh: Any, environment: Environment) -> bool:
    """Whether the run starts over: as ``swell.Job(fresh=...)`` says, or else the environment; not after a restart."""
    if fresh not in (None, True, False):
        raise ConfigError(f"fresh is {fresh!r}; expected True, False or None. Leave it out to resume the run.")
    return bool(environment.swell_fresh if fresh is None else fresh) and not environment.restart_count


def check_micro(micro: Any) -> None:
    """Refuse what is neither a number nor a pair; their values are checked later."""
    if micro is None or isinstance(micro, (tuple, bool)):
        return
    try:
        operator.index(micro)
    except TypeError:
        raise ConfigError(
            f"micro is {micro!r}, a {type(micro).__name__}; expected the largest micro-batch of a replica as a whole "
            f"number, or the tuple (smallest, largest). Give micro=8 or micro=(4, 8); to have it chosen during the "
            f"run, give swell.Job(batch=swell.Goodput(..., micro='auto'))."
        ) from None


def check_loss(loss: Any) -> None:
    """Refuse what is not a mean loss that a backward pass can start from."""
    if not isinstance(loss, Tensor):
        raise LossError(
            f"loss is a {type(loss).__name__}; expected a tensor of one number. Give job.backward what the loss "
            f"function returns, without .item() or float()."
        )
    if loss.numel() != 1:
        raise LossError(
            f"loss has the shape {tuple(loss.shape)}; expected one number, the mean over the batch's samples. Call "
            f".mean() on it, or use the loss function's reduction='mean'."
        )
    if not loss.requires_grad:
        raise LossError(
            "loss depends on no trainable parameter; expected one that a backward pass can start from. Look for "
            "torch.no_grad(), .detach() or .item() in its computation, and check that some parameter requires a "
            "gradient."
        )


def check_pair(model: Any, optimizer: Any) -> None:
    """Refuse what is not a model and an optimizer of at least one of its parameters, or of none at all yet."""
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model is a {type(model).__name__}; expected a torch.nn.Module. Call job.wrap(model, optimizer), in this "
            f"order."
        )
    if isinstance(optimizer, (list, tuple)):
        raise ConfigError(
            f"optimizer is a {type(optimizer).__name__} of {len(optimizer)}; expected one optimizer. Call job.wrap "
            f"once for each."
        )
    if not hasattr(optimizer, "param_groups") or not callable(getattr(optimizer, "step", None)):
        raise ConfigError(
            f"optimizer is a {type(optimizer).__name__}; expected a torch.optim.Optimizer. Create one first, such as "
            f"torch.optim.SGD(model.parameters(), lr=0.1)."
        )
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if trained and trained.isdisjoint(map(id, model.parameters())):
        raise ConfigError(
            f"optimizer is a {type(optimizer).__name__} of {len(trained)} parameters, none of them of this "
            f"{type(model).__name__}; expected an optimizer of this model. Create it from model.parameters(), after "
            f"anything that replaces them (sharding, for example)."
        )


def check_clip(clip: Any) -> None:
    """Refuse what gradients cannot be clipped by."""
    if isinstance(clip, float) and 0.0 < clip < math.inf:
        return
    number = float(clip) if isinstance(clip, Real) and not isinstance(clip, bool) else math.nan
    if not callable(clip) and not 0.0 < number < math.inf:
        raise ConfigError(
            f"clip is {clip!r}; expected a number above 0 (the largest norm a gradient may have) or a function of the "
            f"parameters. Leave it out for no clipping."
        )


def check_dataset(dataset: Any, call: str) -> None:
    """Refuse a loader where a data set is needed, and tensors that are not samples."""
    if isinstance(dataset, DataLoader) and isinstance(dataset.sampler, DistributedSampler):
        raise ConfigError(
            f"dataset is a {type(dataset).__name__} with a DistributedSampler; expected the data set alone, because "
            f"the job splits it over the replicas, and a part would be split once more. Give job.{call} the loader's "
            f"data set (loader.dataset) without the sampler, and shuffle=True for training."
        )
    if isinstance(dataset, DataLoader):
        raise ConfigError(
            f"dataset is a {type(dataset).__name__}; expected a data set, which the job loads itself. Give job.{call} "
            f"the loader's data set (loader.dataset) and its options, such as num_workers."
        )
    if _are_parts(dataset):
        shapes = ", ".join(str(tuple(part.shape)) for part in dataset)
        raise ConfigError(
            f"dataset is a {type(dataset).__name__} of tensors with shapes {shapes}; expected a data set of samples, "
            f"and each of these would be one. Give job.{call} torch.utils.data.TensorDataset(x, y)."
        )
    tensors = getattr(dataset, "tensors", None)
    if isinstance(tensors, (tuple, list)) and all(isinstance(part, Tensor) and part.dim() for part in tensors):
        lengths = [len(part) for part in tensors]
        if any(length != len(dataset) for length in lengths):
            raise ConfigError(
                f"dataset is a {type(dataset).__name__} of {len(dataset)} samples with tensors of {lengths} rows; "
                f"expected as many rows as samples. Make them of one length."
            )


def _are_parts(dataset: Any) -> bool:
    """Whether a few tensors are the parts of a data set rather than its samples, which are alike."""
    if not isinstance(dataset, (tuple, list)) or len(dataset) > FEW_SAMPLES:
        return False
    tensors = [part for part in dataset if isinstance(part, Tensor)]
    return len(tensors) == len(dataset) and len({(part.shape[1:], part.dtype) for part in tensors}) > 1


def check_options(given: dict[str, Any], known: Iterable[str]) -> None:
    """Refuse options that ``job.loader`` does not have."""
    if "batch_size" in given:
        raise ConfigError(
            f"batch_size is {given['batch_size']!r}; expected none, because the job decides it. Give the global batch "
            f"as swell.Job(batch=...), and how much of it one replica computes at once as swell.Job(micro=...)."
        )
    options = sorted(known)
    if unknown := [name for name in given if name not in options]:
        raise ConfigError(
            f"job.loader has no option {', '.join(unknown)} for this data set; expected any of {', '.join(options)}. "
            f"Correct the name, or leave it out."
        )


def stopping_by(metric: Any, target: Any, patience: Any, better: Any) -> EarlyStopping | None:
    """The early stopping that a user asks for; None where no metric ends the run."""
    if metric is not None:
        return EarlyStopping(metric, target=target, patience=patience, better=better)
    if target is None and patience is None:
        return None
    raise ConfigError(
        f"target is {target!r}, patience is {patience!r} and metric is None; expected the name of the metric that is "
        "meant. Call for example job.until(epochs=90, metric='loss', patience=5)."
    )
