"""One exchange a step for models under ``DistributedDataParallel``, which by itself exchanges every micro-batch."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from swell.core.protocols import Collective
from swell.gradients.gradient_sum import ABSENT, DENSE, SPARSE, GradientSum
from swell.runtime.script_group import present_collective


class OneExchange:
    """Takes over the averaging of a DDP model whose parameters are all one optimizer's.

    Nobody tells an optimizer of its model. So modules are looked at as they are called, until the first step: the model
    is found before its first forward pass, and told to leave its gradients alone. One with a communication hook, a
    static graph or inside ``join`` goes on as it is, for it does more than averaging.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._model: DistributedDataParallel | None = None
        self._collective: Collective | None = None
        self._looking = register_module_forward_pre_hook(_look(weakref.ref(self)))
        weakref.finalize(self, self._looking.remove)

    @property
    def found(self) -> bool:
        """Whether gradients wait for :meth:`sum`."""
        return self._model is not None

    def stop_looking(self) -> None:
        """The first step: the model, if there is one, has been called by now."""
        self._looking.remove()

    def look(self, module: Any) -> None:
        """Take the module over if it is the optimizer's model."""
        optimizer = self._optimizer()
        if optimizer is None or self._model is not None:
            self._looking.remove()
            return
        if not isinstance(module, DistributedDataParallel) or not torch.is_grad_enabled():
            return
        mine = {p for group in optimizer.param_groups for p in group["params"]}
        theirs = [p for p in module.parameters() if p.requires_grad]
        more = module._comm_hooks or module.static_graph or module._join_config.enable
        if not more and theirs and all(p in mine for p in theirs):
            self._model, self._collective = module, present_collective(module.process_group)
            module.require_backward_grad_sync = False  # as in module.no_sync(), for good
            # A scaler sees only this replica's overflows now: it must tell us instead of passing over step().
            optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]

    def sum(self, accumulator: GradientSum, count: int) -> int:
        """Leave the sum over replicas in ``.grad`` of each; returns how many micro-batches it is of."""
        codes = accumulator.codes()
        if self._model is None or self._collective is None or self._collective.size == 1:
            accumulator.release(codes)
            return count
        flags = [[float(code == kind) for code in codes] for kind in (DENSE, SPARSE)]
        device = accumulator.parameters[0].device
        told = torch.tensor([*flags[0], *flags[1], float(count)], dtype=torch.float64, device=device)
        self._collective.sum_tensors([told])
        dense, sparse, total = torch.split(told, [len(codes), len(codes), 1])
        codes = "".join(
            DENSE if d else SPARSE if s else ABSENT for d, s in zip(dense.tolist(), sparse.tolist(), strict=True)
        )
        self._collective.sum_tensors(accumulator.tensors_to_sum(codes))
        accumulator.release(codes)
        self._model.require_forward_param_sync = True  # the next forward pass takes over rank 0's buffers, as ever
        return int(total)


def overflowed(optimizer: Any) -> bool:
    """Whether a ``GradScaler`` told the optimizer of an overflow; takes the scale out of the gradients otherwise."""
    found, scale = getattr(optimizer, "found_inf", None), getattr(optimizer, "grad_scale", None)
    if found is None:
        return False
    optimizer.found_inf = optimizer.grad_scale = None  # for us, not for the optimizer's own step
    if bool(found):
        return True
    gradients: list[Tensor] = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
    if scale is not None and gradients:
        torch._foreach_div_(gradients, float(scale))
    return False


def _look(exchange: weakref.ref[OneExchange]) -> Any:
    def hook(module: Any, inputs: Any) -> None:
        alive = exchange()
        if alive is not None:
            alive.look(module)

    return hook
