"""Keras on torch in several processes: gradients summed once a step, weights and batch statistics kept equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from swell.runtime.collective import TorchCollective


class TorchProcesses:
    """The processes of the default process group, each with a share of every step."""

    def __init__(self) -> None:
        assert dist.group.WORLD is not None
        self._collective = TorchCollective(dist.group.WORLD)
        self.rank, self.count = self._collective.rank, self._collective.size
        self.chief = self.rank == 0

    def numbers(self, number: float) -> list[float]:
        return [float(row[0]) for row in self._collective.gather_numbers([number])]

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        self._collective.sum_tensors([tensor.detach() for tensor in tensors])

    def broadcast(self, variables: Sequence[Any]) -> None:
        with torch.no_grad():
            self._collective.broadcast_tensors([v.value.detach() for v in variables], source=0)

    def average(self, variables: Sequence[Any]) -> None:
        tensors = [v.value.detach() for v in variables if v.value.is_floating_point()]
        if tensors:
            self._collective.sum_tensors(tensors)
            torch._foreach_div_(tensors, self.count)

    def train_function(self, model: Any) -> None:
        return None


def torch_processes() -> TorchProcesses | None:
    """The processes of the default group; None if there is only one."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return TorchProcesses()
    return None
