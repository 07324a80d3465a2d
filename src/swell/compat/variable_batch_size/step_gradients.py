"""The gradient of one step of the trace, from the minibatches that each replica computed, if any."""

from __future__ import annotations

import torch
from torch.optim import Optimizer

from swell.compat.variable_batch_size.xla import XlaCollective
from swell.core.protocols import Collective
from swell.errors import ConfigError
from swell.gradients.gradient_sum import GradientSum
from swell.gradients.replica_sum import sum_over_replicas
from swell.runtime.script_group import present_collective


class StepGradients:
    """Adds weighted minibatch gradients up, first on this replica and then over all, and measures both sums."""

    def __init__(self, optimizer: Optimizer, collective: Collective | None, *, replicas: int, rank: int) -> None:
        device = optimizer.param_groups[0]["params"][0].device
        if collective is None:
            collective = XlaCollective() if device.type == "xla" else present_collective()
        if (collective.size, collective.rank) != (replicas, rank):
            raise ConfigError(
                f"the sampler's place is rank {rank} of {replicas}; expected this process's, rank {collective.rank} of "
                f"{collective.size}. Pass the process group's size and rank to CustomSampler, or make the group first."
            )
        self._collective = collective
        self._optimizer = optimizer
        self._sum = GradientSum(optimizer)
        self._device = device

    def clear(self) -> None:
        """Forget the step."""
        self._sum.clear()

    def add(self, weight: float) -> None:
        """Add the gradients in ``.grad``, times a weight."""
        self._sum.weigh(weight)
        self._sum.take(multiplier=weight, measure=True, preconditioned=False)

    def exchange(self) -> None:
        """Leave the sum over replicas in ``.grad`` on each."""
        small = self._sum.small_squares()
        if small is None:
            small = torch.zeros(len(self._optimizer.param_groups), device=self._device)
        small = small.to(self._device)
        if self._collective.size > 1:
            small = small.to(torch.float32)
        self._small = sum_over_replicas(self._sum, self._collective, small)

    def squares(self) -> list[tuple[float, float]]:
        """``(A, N)`` of each group for ``swell.core.moments.estimate``; call it after ``exchange``."""
        big = self._sum.norms.squares([p.grad for p in self._sum.parameters])
        small, whole = torch.stack([self._small, big.to(self._small)]).tolist()
        return list(zip(small, whole, strict=True))
