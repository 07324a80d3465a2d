"""One exchange a step for models under ``DistributedDataParallel``, which by itself exchanges every micro-batch."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from swell.core.protocols import Collective
from swell.gradients.gradient_sum import GradientSum
from swell.gradients.replica_sum import sum_over_replicas
from swell.runtime.script_group import present_collective


class DDPExchange:
    """Takes over the averaging of a DDP model whose parameters all belong to one optimizer.

    An optimizer does not know its model. So until the first step every module is inspected when it is called: the
    model is found before its first forward pass, and its own averaging is switched off. A model with a communication
    hook, with a static graph or inside ``join`` keeps its averaging, because it does more than average.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._model: DistributedDataParallel | None = None
        self._collective: Collective | None = None
        self._search = register_module_forward_pre_hook(_inspection(weakref.ref(self)))
        weakref.finalize(self, self._search.remove)

    @property
    def active(self) -> bool:
        """Whether a model was found, so that gradients wait for :meth:`sum`."""
        return self._model is not None

    def stop_search(self) -> None:
        """Inspect no more modules: at the first step the model, if there is one, has been called."""
        self._search.remove()

    def inspect(self, module: Any) -> None:
        """Take the module over if it is the optimizer's model."""
        optimizer = self._optimizer()
        if optimizer is None or self._model is not None:
            self._search.remove()
            return
        if not isinstance(module, DistributedDataParallel) or not torch.is_grad_enabled():
            return
        own = {p for group in optimizer.param_groups for p in group["params"]}
        trained = [p for p in module.parameters() if p.requires_grad]
        special = module._comm_hooks or module.static_graph or module._join_config.enable
        if not special and trained and all(p in own for p in trained):
            self._model, self._collective = module, present_collective(module.process_group)
            module.require_backward_grad_sync = False  # as in module.no_sync(), but for good
            # A scaler now sees this replica's overflows only: it must report them to step() instead of skipping it.
            optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]

    def sum(self, gradients: GradientSum, count: int) -> int:
        """Leave the sum over replicas in ``.grad`` on each; returns how many micro-batches are in it."""
        if self._model is None or self._collective is None:
            gradients.release(gradients.codes())
            return count
        counts = torch.tensor([count], dtype=torch.float64, device=gradients.parameters[0].device)
        total = sum_over_replicas(gradients, self._collective, counts)
        self._model.require_forward_param_sync = True  # the next forward pass copies rank 0's buffers, as DDP does
        return int(total)


def _inspection(exchange: weakref.ref[DDPExchange]) -> Any:
    def hook(module: Any, inputs: Any) -> None:
        alive = exchange()
        if alive is not None:
            alive.inspect(module)

    return hook
