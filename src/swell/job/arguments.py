"""Checks of what a user gives to a job, before anything is built on it."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from swell.checkpoint.cadence import Cadence
from swell.errors import ConfigError, LossError


def as_cadence(save: Any) -> Cadence:
    """When checkpoints are due, by what ``swell.Job(save=...)`` was given."""
    if isinstance(save, Cadence):
        return save
    if save is None:
        return Cadence()
    if isinstance(save, Real) and not isinstance(save, bool) and float(save) > 0:
        return Cadence(every_s=float(save))
    raise ConfigError(
        f"save={save!r} was given; expected the seconds between two checkpoints, a number above 0, or a "
        f"swell.checkpoint.Cadence. Give save=300 for one every five minutes, save=Cadence(every_steps=1000) to count "
        f"steps, or save=None for none but your own."
    )


def check_place(run_dir: Any, device: Any) -> None:
    """Refuse what is no folder, or no device."""
    if run_dir is not None and not isinstance(run_dir, (str, os.PathLike)):
        raise ConfigError(
            f"run_dir={run_dir!r} is of type {type(run_dir).__name__}; expected the path of the run's folder. Give "
            f"text such as 'runs/digits', a pathlib.Path, or None to keep nothing."
        )
    try:
        torch.device("cpu" if isinstance(device, str) and device == "auto" else device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"device={device!r} is not one that torch knows; expected 'auto', 'cpu', 'cuda', 'cuda:0' and the like, or "
            f"a torch.device. Leave it out to take the GPU where there is one."
        ) from error


def check_micro(micro: Any) -> None:
    """Refuse what is neither a number nor a pair; what they hold is looked at later."""
    if micro is None or isinstance(micro, (tuple, bool)):
        return
    try:
        operator.index(micro)
    except TypeError:
        raise ConfigError(
            f"micro={micro!r} is of type {type(micro).__name__}; expected the largest micro-batch of a replica as a "
            f"whole number, or the tuple (smallest, largest). Give micro=8 or micro=(4, 8); for one that is chosen as "
            f"the run goes, swell.Job(batch=swell.Goodput(..., micro='auto'))."
        ) from None


def check_loss(loss: Any) -> None:
    """Refuse what is not a mean loss that a backward pass can start from."""
    if not isinstance(loss, Tensor):
        raise LossError(
            f"job.backward was given a {type(loss).__name__}; expected the loss as a tensor of one number. Give what "
            f"the loss function returns: leave out .item() or float() on its way."
        )
    if loss.numel() != 1:
        raise LossError(
            f"job.backward was given a loss of shape {tuple(loss.shape)}; expected one number, the mean over the "
            f"batch's samples. Call .mean() on it, or use the loss function's reduction='mean'."
        )
    if not loss.requires_grad:
        raise LossError(
            "job.backward was given a loss that depends on no trainable parameter. Check for torch.no_grad(), "
            ".detach() or .item() on its way, and that some parameter requires a gradient."
        )


def check_pair(model: Any, optimizer: Any) -> None:
    """Refuse what is not a model and an optimizer of at least one of its parameters, or of none at all yet."""
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"job.wrap was given a {type(model).__name__} as the model; expected a torch.nn.Module. Call "
            f"job.wrap(model, optimizer), in this order."
        )
    if isinstance(optimizer, (list, tuple)):
        raise ConfigError(
            f"job.wrap was given a {type(optimizer).__name__} of {len(optimizer)} as the optimizer; expected one. Call "
            f"job.wrap once for each optimizer."
        )
    if not hasattr(optimizer, "param_groups") or not callable(getattr(optimizer, "step", None)):
        raise ConfigError(
            f"job.wrap was given a {type(optimizer).__name__} as the optimizer; expected a torch.optim.Optimizer. Make "
            f"one first, such as torch.optim.SGD(model.parameters(), lr=0.1)."
        )
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if trained and trained.isdisjoint(map(id, model.parameters())):
        raise ConfigError(
            f"job.wrap was given a {type(optimizer).__name__} of {len(trained)} parameters, of which none is one of "
            f"this {type(model).__name__}'s; expected the model that it trains. Make the optimizer from "
            f"model.parameters(), after anything that replaces them (sharding, say)."
        )


def check_clip(clip: Any) -> None:
    """Refuse what gradients cannot be clipped by."""
    if isinstance(clip, float) and 0.0 < clip < math.inf:
        return
    number = float(clip) if isinstance(clip, Real) and not isinstance(clip, bool) else math.nan
    if not callable(clip) and not 0.0 < number < math.inf:
        raise ConfigError(
            f"job.step was given clip={clip!r}; expected a number above 0, the largest norm a gradient may have, or a "
            f"function of the parameters. Leave it out not to clip."
        )


def check_dataset(dataset: Any, call: str) -> None:
    """Refuse a loader where its data set is needed: it has batches and an order of its own."""
    if isinstance(dataset, DataLoader):
        raise ConfigError(
            f"job.{call} was given a {type(dataset).__name__}; expected a data set, which the job loads itself. Give "
            f"its data set, loader.dataset, and options such as num_workers to job.{call}."
        )


def check_options(given: dict[str, Any], known: Iterable[str]) -> None:
    """Refuse options that ``job.loader`` does not have."""
    if "batch_size" in given:
        raise ConfigError(
            f"job.loader was given batch_size={given['batch_size']!r}, which the job decides. Give the global batch as "
            f"swell.Job(batch=...), and how much of it one replica computes at once as swell.Job(micro=...)."
        )
    options = sorted(known)
    if unknown := [name for name in given if name not in options]:
        raise ConfigError(
            f"job.loader was given {', '.join(unknown)}, which it does not have for this data set; expected any of "
            f"{', '.join(options)}. Correct the name, or leave it out."
        )
