"""The replicas that AdaScale measures together: how many there are, and sums over them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from swell.core.counts import whole_number
from swell.errors import ConfigError
from swell.runtime.collective import Alone
from swell.runtime.script_group import present_collective


class Replicas:
    """A process group, or one process alone. A copy uses the same group, an unpickled object the default group."""

    def __init__(self, world_size: int | None = None, process_group: Any = None) -> None:
        collective = present_collective(process_group)
        self.size = collective.size if world_size is None else whole_number(world_size, name="world_size")
        if self.size == 1:
            collective = Alone()
        elif self.size != collective.size:
            raise ConfigError(
                f"world_size is {self.size}; expected {collective.size}, the size of the process group. Leave "
                "world_size out, or call torch.distributed.init_process_group before making AdaScale."
            )
        self._collective = collective
        self._may_leave = False

    @property
    def group(self) -> Any:
        """The process group; None for one process alone."""
        return getattr(self._collective, "group", None)

    def sum(self, figures: Tensor, *, present: bool = True) -> tuple[Tensor, float]:
        """The figures summed over replicas, and how many of these have not left; every replica calls it."""
        message = torch.cat([figures, figures.new_tensor([float(present)])])
        if self.size > 1:
            self._collective.sum_tensors([message])
            return message[:-1], float(message[-1]) if self._may_leave else float(self.size)
        return message[:-1], 1.0

    def allow_leaving(self) -> None:
        """Let replicas leave before the others: count them in each sum, which waits for the device."""
        self._may_leave = True

    def __deepcopy__(self, memo: dict[int, Any]) -> Replicas:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (Replicas, (1 if self.size == 1 else None,))
