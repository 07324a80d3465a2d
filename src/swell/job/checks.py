"""What is looked at before anything is built on it: that replicas have one model, that a loss is a loss."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from swell.errors import LossError
from swell.job.trainee import Trainee


def describe(trainee: Trainee) -> str:
    """A model and its optimizer in lines that two replicas can compare."""
    lines = [f"{name} {tuple(p.shape)} {p.dtype} {p.requires_grad}" for name, p in trainee.model.named_parameters()]
    lines += [f"{name} {tuple(b.shape)} {b.dtype}" for name, b in trainee.model.named_buffers()]
    groups = [len(group["params"]) for group in trainee.optimizer.param_groups]
    return "\n".join([*lines, f"{type(trainee.optimizer).__name__} with groups of {groups}"])


def check_loss(loss: Any) -> None:
    """Refuse what is not a mean loss that a backward pass can start from."""
    if not isinstance(loss, Tensor):
        raise LossError(f"job.backward was given a {type(loss).__name__}; expected the loss as a tensor of one number.")
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
