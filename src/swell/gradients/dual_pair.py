"""The first two micro-gradients of a replica in a measured step, compared in the optimizer's dual norm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from swell.gradients.dual_norms import DualNorm, DualNorms


class DualPair:
    """Waits for the second micro-gradient of a step, while the first is all that the step's sum has.

    Nothing is kept: the first gradient is the sum itself. More micro-batches are added up without being compared.
    """

    def __init__(self, norm: DualNorm, groups: Sequence[Mapping[str, Any]]) -> None:
        self._norm: DualNorm = norm
        self.follow(groups)

    def follow(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Compare the parameters of these groups of an optimizer from now on."""
        self._norms, self._num_groups = DualNorms(groups, self._norm), len(groups)
        self.clear()

    def clear(self) -> None:
        """Forget the step."""
        self._taken = 0  # micro-gradients that were added to the sum
        self._first: tuple[float, int] | None = None  # the first one's weight and samples, if it can be compared
        self._sizes: tuple[int, int] | None = None  # samples of the two that were compared
        self._total: Tensor | None = None

    def added(self, weight: float, samples: int, *, measured: bool) -> None:
        """A micro-gradient was added to the sum: the mean gradient of some samples times ``weight``."""
        self._taken += 1
        self._first = (weight, samples) if self._taken == 1 and measured and weight > 0 and samples > 0 else None

    def compare(
        self, total: Sequence[Tensor | None], gradients: Sequence[Tensor | None], weight: float, samples: int
    ) -> None:
        """Compare a micro-gradient, or some parameters' part of it, with the sum that it is about to be added to."""
        if self._first is None or not weight > 0 or samples < 1 or not total:
            return
        figures = self._norms.compare(total, gradients, weights=(self._first[0], weight))
        self._sizes = self._first[1], samples
        self._total = figures if self._total is None else self._total + figures.to(self._total.device)

    def figures(self, device: torch.device) -> Tensor:
        """What replicas sum: the reach and the spread of each group, the root of the size, and 1 for this pair.

        All zeros where this replica has compared nothing. The spread is times the root of the harmonic mean of sizes.
        """
        if self._total is None or self._sizes is None:
            return torch.zeros(2 * self._num_groups + 2, dtype=torch.float64, device=device)
        one, two = self._sizes
        reach, spread = self._total.to(device)
        rest = [(math.sqrt(one) + math.sqrt(two)) / 2, 1.0]
        return torch.cat([reach, spread * math.sqrt(2 * one * two / (one + two)), reach.new_tensor(rest)])
