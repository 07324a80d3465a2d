"""Notice a ``GradScaler`` of the job that the script uses too, so that gradients would be scaled or unscaled twice.

torch keeps what is needed in private attributes and tells nobody else: a write by ``unscale_`` is not counted in the
gradient. No number is read from a device.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer


def scaled_by_script(scaler: Any, loss: Tensor) -> bool:
    """Whether the loss is what ``scaler.scale`` returned.

    >>> import torch
    >>> scaler, loss = torch.amp.GradScaler("cpu"), torch.ones((), requires_grad=True).mean()
    >>> scaled_by_script(scaler, scaler.scale(loss)), scaled_by_script(scaler, loss * 65536)
    (True, False)
    """
    scale, node = getattr(scaler, "_scale", None), loss.grad_fn
    if not isinstance(scale, Tensor) or node is None or not node.name().startswith("MulBackward"):
        return False
    other = getattr(node, "_saved_other", None)
    return isinstance(other, Tensor) and other.data_ptr() == scale.data_ptr()


def unscaled_by_script(scaler: Any, optimizer: Optimizer) -> bool:
    """Whether ``scaler.unscale_(optimizer)`` was called since the last update.

    >>> import torch
    >>> scaler, weight = torch.amp.GradScaler("cpu"), torch.ones(2, requires_grad=True)
    >>> optimizer = torch.optim.SGD([weight])
    >>> scaler.scale(weight.sum()).backward()
    >>> before = unscaled_by_script(scaler, optimizer)
    >>> scaler.unscale_(optimizer)
    >>> before, unscaled_by_script(scaler, optimizer)
    (False, True)
    """
    states = getattr(scaler, "_per_optimizer_states", {})
    return bool(states.get(id(optimizer), {}).get("found_inf_per_device"))
