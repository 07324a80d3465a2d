"""Keras on torch in several processes: gradients summed once a step, weights and batch statistics kept alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from swell.runtime.collective import TorchCollective


class TorchWorld:
    """The replicas of the default process group."""

    def __init__(self) -> None:
        assert dist.group.WORLD is not None
        self._collective = TorchCollective(dist.group.WORLD)
        self.rank, self.size = self._collective.rank, self._collective.size
        self.chief = self.rank == 0

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace each tensor by its sum over processes, in place."""
        self._collective.sum_tensors([tensor.detach() for tensor in tensors])

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Give every process rank 0's values."""
        with torch.no_grad():
            self._collective.broadcast_tensors([v.value.detach() for v in variables], source=0)

    def average(self, variables: Sequence[Any]) -> None:
        """Replace floating-point variables, such as batch-norm statistics, by their mean over processes."""
        tensors = [v.value.detach() for v in variables if v.value.is_floating_point()]
        if not tensors:
            return
        self._collective.sum_tensors(tensors)
        torch._foreach_div_(tensors, self.size)

    def numbers(self, number: float) -> list[float]:
        """What each process gives, alike on all; every process has to ask."""
        return [float(row[0]) for row in self._collective.gather_numbers([number])]


def world() -> TorchWorld | None:
    """The world of processes, where there is more than one."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return TorchWorld()
    return None
