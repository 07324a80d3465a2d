"""The replicas that AdaScale hears of: how many, and the sum of what each measured."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from swell.core.counts import whole_number
from swell.errors import ConfigError
from swell.runtime.collective import Alone
from swell.runtime.script_group import present_collective


class Exchange:
    """A process group, or nobody. A copy speaks over the same group, an unpickled one over the default group."""

    def __init__(self, world_size: int | None = None, process_group: Any = None) -> None:
        collective = present_collective(process_group)
        self.size = collective.size if world_size is None else whole_number(world_size, name="world_size")
        if self.size == 1:
            collective = Alone()
        elif self.size != collective.size:
            raise ConfigError(
                f"world_size is {self.size}, the process group has {collective.size} member(s). Leave world_size out, "
                "or call torch.distributed.init_process_group before AdaScale is made."
            )
        self._collective = collective

    @property
    def group(self) -> Any:
        """The process group; None for nobody."""
        return getattr(self._collective, "group", None)

    def sum(self, figures: Tensor, *, present: bool = True) -> tuple[Tensor, float]:
        """The figures summed over replicas, and how many of these are still there; every replica calls it."""
        both = torch.cat([figures, figures.new_tensor([float(present)])])
        if self.size > 1:
            self._collective.sum_tensors([both])
            return both[:-1], float(both[-1]) if self._may_leave else float(self.size)
        return both[:-1], 1.0

    _may_leave = False

    def let_leave(self) -> None:
        """From now on replicas may leave before the others do, so count them each time (which waits for the device)."""
        self._may_leave = True

    def __deepcopy__(self, memo: dict[int, Any]) -> Exchange:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (Exchange, (1 if self.size == 1 else None,))
