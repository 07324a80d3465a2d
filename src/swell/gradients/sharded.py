"""Gradients of FSDP2 models: the model itself sums them over replicas, and they are measured just before."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from swell.gradients.placement import is_sharded, local
from swell.gradients.preconditioner import Preconditioner

Columns = list[tuple[Tensor, int, int, int]]  # parameter, its optimizer group, first and last column of one shard


def sharded_modules(model: nn.Module) -> list[Any]:
    """The modules that were given to ``fully_shard``."""
    if not any(is_sharded(parameter) for parameter in model.parameters()):
        return []
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


class ShardedGradients:
    """Makes an FSDP2 model sum its gradients, and measures each replica's own before that.

    ``fully_shard`` averages over replicas, which is right only for equal shares; our losses are weighted, so gradients
    must be summed. A replica's whole gradient exists only inside the reduce-scatter, so it is measured there: one more
    reading of a buffer that exists anyway, no copy. In Adam's metric the squares are sent to where the second moments
    are, in a second reduce-scatter of the same size, on measured steps only.

    Where a reduce-scatter of our own cannot be used, only gradients that replicas have summed can be measured: then the
    small batches that are compared are the rounds of accumulation, and ``by_rounds`` is true.
    """

    def __init__(self, modules: Sequence[Any], optimizer: Optimizer, preconditioner: Preconditioner) -> None:
        self._optimizer, self._preconditioner = optimizer, preconditioner
        self.clear()
        self._weight, self._measure, self._preconditioned = 0.0, False, False
        parameters = [p for module in modules for p in module.parameters() if is_sharded(p)]
        self.alone = all(p.device_mesh.size() == 1 for p in parameters)  # the only piece is the whole
        self.by_rounds = not all([self._prepare(module) for module in modules]) and not self.alone
        if self.by_rounds:
            warnings.warn(
                "this FSDP2 model does not let swell see gradients before they are summed over replicas (parameters on "
                "several meshes, or an older torch): noise is measured between rounds of accumulation instead, and "
                "only in steps that have at least two.",
                UserWarning,
                stacklevel=4,
            )

    def _prepare(self, module: Any) -> bool:
        """Sum instead of averaging; True if this module's gradients can be measured before."""
        module.set_gradient_divide_factor(1.0)
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:
            groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
        try:
            if any(getattr(group.mesh_info, "shard_mesh_size", 1) == 1 for group in groups):
                raise ValueError("there is no reduce-scatter where every replica holds the whole")
            for group in groups:
                module.set_custom_reduce_scatter(_measuring_reduce_scatter(self, group))
        except (AttributeError, ImportError, ValueError):
            module.set_force_sum_reduction_for_comms(True)
            return False
        return True

    def clear(self) -> None:
        """Forget the step."""
        self._small: dict[bool, Tensor | None] = {False: None, True: None}
        self.squares_valid = True  # False once a gradient could not be measured by itself, or not by parameter group

    def expect(self, weight: float, *, measure: bool, preconditioned: bool) -> None:
        """The next backward pass is of a loss with this weight."""
        self._weight = weight
        self._measure, self._preconditioned = measure and weight > 0, preconditioned

    def small_squares(self, *, preconditioned: bool = False) -> Tensor | None:
        """This replica's part of the sum over micro-batches of ``|m_j g_j|^2 / m_j``, by group."""
        return self._small[preconditioned]

    def see(self, group: Any, gradients: Tensor, replicas: dist.ProcessGroup) -> None:
        """Measure a replica's own gradients of some parameters; they are weighted, with one row for each shard."""
        if not self._measure:
            return
        rows = gradients.view(replicas.size(), -1)
        columns = self._columns(group, rows.shape[1])
        count = len(self._optimizer.param_groups)
        if columns is None and (count > 1 or self._preconditioned):
            self.squares_valid = False
            return
        squares = torch.zeros(count, dtype=torch.float64, device=gradients.device)
        if count == 1:
            squares[0] = _square(rows)
        else:
            for _, owner, first, last in columns or ():
                squares[owner] += _square(rows[:, first:last])
        self._add(False, squares / self._weight)
        if self._preconditioned and columns is not None:
            self._add(True, self._in_metric(rows, columns, replicas, count))

    def _in_metric(self, rows: Tensor, columns: Columns, replicas: dist.ProcessGroup, count: int) -> Tensor:
        """The squares of all replicas in Adam's metric, summed where their second moments are."""
        squares = rows.to(torch.promote_types(rows.dtype, torch.float32)).square().div_(self._weight).flatten()
        own_shard = squares.new_empty(rows.shape[1])
        _reduce_scatter(own_shard, squares, replicas)
        total = torch.zeros(count, dtype=torch.float64, device=rows.device)
        for parameter, owner, first, _ in columns:
            piece = local(parameter)
            root = own_shard[first : first + piece.numel()].sqrt_().view(piece.shape)
            (quotient,) = self._preconditioner.divide([parameter], [root])
            assert quotient is not None
            total[owner] += _square(quotient)
        return total

    def _add(self, preconditioned: bool, squares: Tensor) -> None:
        total = self._small[preconditioned]
        self._small[preconditioned] = squares if total is None else total + squares

    def _columns(self, group: Any, width: int) -> Columns | None:
        """Where each parameter lies in a row; None where that is unknown, because some have no gradient."""
        owners = {id(p): number for number, g in enumerate(self._optimizer.param_groups) for p in g["params"]}
        columns: Columns = []
        first = 0
        for entry in group.fsdp_params:
            parameter = entry.sharded_param
            last = first + entry.padded_sharded_param_size.numel()
            if id(parameter) not in owners:
                return None
            columns.append((parameter, owners[id(parameter)], first, last))
            first = last
        return columns if first == width else None


def _square(tensor: Tensor) -> Tensor:
    wide = torch.promote_types(tensor.dtype, torch.float32)
    return torch.linalg.vector_norm(tensor, dtype=wide).double().square()


def _reduce_scatter(output: Tensor, values: Tensor, group: dist.ProcessGroup) -> Any:
    single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # the name from torch 2.13 on
    return single(output, values, op=dist.ReduceOp.SUM, group=group)


def _measuring_reduce_scatter(gradients: ShardedGradients, params: Any) -> Any:
    """A reduce-scatter that measures what it is about to sum; it ignores ``op``, because gloo can only sum."""
    from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

    class Measuring(ReduceScatter):
        def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
            return torch.empty(*size, dtype=dtype, device=device)

        def __call__(
            self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
        ) -> Any:
            gradients.see(params, input_tensor, group)
            return _reduce_scatter(output_tensor, input_tensor, group)

    return Measuring()
