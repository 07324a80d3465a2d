"""AdaScale inside torch's ``Join`` context: replicas that run out of batches before the others do."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.algorithms.join import Joinable, JoinHook

from swell.compat.fairscale.averages import Averages
from swell.compat.fairscale.exchange import Exchange
from swell.compat.fairscale.sizes import Sizes
from swell.compat.fairscale.watch import GradientWatch
from swell.gradients.norms import WIDE


class Leaving(Joinable):
    """Lets ``with Join([model, optimizer]):`` stand in for a replica that has left; DDP first, then the optimizer.

    ``model.join()`` knows nothing of the optimizer's exchange: use ``Join`` with both.
    """

    _exchange: Exchange
    _averages: list[Averages]
    _channels: int
    _sizes: Sizes | None
    _accumulation: int
    _watch: GradientWatch | None
    _over_all = True  # whether DDP divides by all replicas, those that left included

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """What is called in place of a replica that has left."""
        self._exchange.let_leave()
        self._over_all = bool(kwargs.get("divide_by_initial_world_size", True))
        return StandIn(self)

    @property
    def join_device(self) -> torch.device:
        """Where ``Join`` counts the replicas."""
        return self.parameters()[0].device

    @property
    def join_process_group(self) -> Any:
        """Among whom ``Join`` counts the replicas."""
        return self._exchange.group

    def parameters(self) -> list[torch.Tensor]:
        """Every parameter, group after group."""
        assert self._watch is not None
        return self._watch.parameters


class StandIn(JoinHook):
    """Takes part in the exchange with nothing, and learns the averages when all have left."""

    def __init__(self, optimizer: Leaving) -> None:
        self._optimizer = optimizer
        self._micro_batches: int | None = None

    def main_hook(self) -> None:
        """The others have sent back one more micro-batch."""
        optimizer = self._optimizer
        if self._micro_batches is None:  # where we were when we left
            assert optimizer._watch is not None
            self._micro_batches = optimizer._watch.micro_batches % optimizer._accumulation
        self._micro_batches = (self._micro_batches + 1) % optimizer._accumulation
        if self._micro_batches == 0:
            first = optimizer.parameters()[0]
            length = optimizer._channels * len(optimizer._averages[0].signal) + (optimizer._sizes is not None)
            nothing = torch.zeros(length, dtype=WIDE.get(first.dtype, first.dtype), device=first.device)
            optimizer._exchange.sum(nothing, present=False)

    def post_hook(self, is_last_joiner: bool) -> None:
        """All have left: take the averages of those that left last."""
        optimizer = self._optimizer
        for averages in optimizer._averages:
            mine = torch.tensor(averages.figures(), device=optimizer.join_device)
            figures, last = optimizer._exchange.sum(mine * is_last_joiner, present=is_last_joiner)
            averages.set_figures((figures / last).tolist())
