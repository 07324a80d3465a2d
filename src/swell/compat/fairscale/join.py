"""What torch's ``Join`` context calls for a replica that ran out of batches before the others."""

from __future__ import annotations

import torch
from torch.distributed.algorithms.join import JoinHook

from swell.compat.fairscale.announced_step import AnnouncedStep
from swell.compat.fairscale.measurement import Measurement
from swell.compat.fairscale.replicas import Replicas
from swell.compat.fairscale.statistics import GradientStatistics


class AbsentReplica(JoinHook):
    """Takes part in the sums over replicas with zeros, and takes over the averages when all replicas have left."""

    def __init__(
        self,
        announced: AnnouncedStep,
        measurement: Measurement,
        statistics: GradientStatistics,
        replicas: Replicas,
    ) -> None:
        self._announced, self._measurement = announced, measurement
        self._statistics, self._replicas = statistics, replicas
        self._micro_batches: int | None = None  # of the others, since their last step

    def main_hook(self) -> None:
        """The other replicas have finished one more backward()."""
        accumulation = self._announced.accumulation
        if self._micro_batches is None:  # where this replica was when it left
            self._micro_batches = self._measurement.gradients.micro_batches % accumulation
        self._micro_batches = (self._micro_batches + 1) % accumulation
        if self._micro_batches == 0:
            self._measurement.contribute_nothing()

    def post_hook(self, is_last_joiner: bool) -> None:
        """All replicas have left: take over the averages of those that left last."""
        device = self._measurement.gradients.parameters[0].device
        for averages in self._statistics.averages:
            figures = torch.tensor(averages.figures(), device=device)
            total, count = self._replicas.sum(figures * is_last_joiner, present=is_last_joiner)
            averages.set_figures((total / count).tolist())
