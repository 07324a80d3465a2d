"""One step's gradient from what each replica computed of it, replicas with nothing included."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from swell.compat.variable_batch_size.xla import XlaCollective
from swell.core.protocols import Collective
from swell.errors import ConfigError
from swell.gradients.gradient_sum import ABSENT, DENSE, SPARSE, GradientSum
from swell.runtime.script_group import present_collective


class Exchange:
    """Adds up weighted minibatch gradients here, then over replicas, and measures both on the way.

    Replicas tell one another which parameters have a gradient, so one that computed nothing sends zeros and a
    parameter that nobody used keeps no gradient.
    """

    def __init__(self, optimizer: Optimizer, collective: Collective | None, *, replicas: int, rank: int) -> None:
        device = optimizer.param_groups[0]["params"][0].device
        if collective is None:
            collective = XlaCollective() if device.type == "xla" else present_collective()
        if (collective.size, collective.rank) != (replicas, rank):
            raise ConfigError(
                f"the sampler is made for rank {rank} of {replicas}, this process is rank {collective.rank} of "
                f"{collective.size}. Pass the process group's size and rank to CustomSampler, or make the group first."
            )
        self._collective = collective
        self._optimizer = optimizer
        self._accumulator = GradientSum(optimizer)
        self._device = device

    def clear(self) -> None:
        """Forget the step."""
        self._accumulator.clear()

    def take(self, weight: float) -> None:
        """Add the gradients in ``.grad`` with a weight."""
        self._accumulator.weigh(weight)
        self._accumulator.take(multiplier=weight, measure=True, preconditioned=False)

    def sum(self) -> None:
        """Leave the sum over replicas in ``.grad`` of each."""
        accumulator = self._accumulator
        codes = accumulator.codes()
        small = accumulator.small_squares()
        groups = len(self._optimizer.param_groups)
        self._small = torch.zeros(groups, device=self._device) if small is None else small.to(self._device)
        if self._collective.size > 1:
            flags = [[float(code == kind) for code in codes] for kind in (DENSE, SPARSE)]
            kinds = torch.tensor(flags, dtype=torch.float32, device=self._device)
            self._small = self._small.to(torch.float32)
            self._collective.sum_tensors([kinds, self._small])
            dense, sparse = kinds.tolist()
            codes = "".join(DENSE if d else SPARSE if s else ABSENT for d, s in zip(dense, sparse, strict=True))
            self._collective.sum_tensors(accumulator.tensors_to_sum(codes))
        accumulator.release(codes)

    def squares(self) -> list[tuple[float, float]]:
        """``(A, N)`` of each group as ``swell.core.moments.estimate`` wants them; after ``sum``."""
        big = self._accumulator.norms.squares([p.grad for p in self._accumulator.parameters])
        both: Tensor = torch.stack([self._small, big.to(self._small)])
        small, whole = both.tolist()
        return list(zip(small, whole, strict=True))
