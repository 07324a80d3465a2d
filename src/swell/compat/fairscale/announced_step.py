"""A step as the script announces it: how many gradients, of how large a batch, of which loss."""

from __future__ import annotations

import math

from swell.compat.fairscale.replicas import Replicas
from swell.core.counts import whole_number
from swell.errors import ConfigError


class SingleWorkerError(ConfigError, RuntimeError):
    """One worker without accumulation; also a ``RuntimeError``, which FairScale raises there."""


class AnnouncedStep:
    """The settings of a step that the script may change between two steps."""

    def __init__(
        self,
        replicas: Replicas,
        *,
        accumulation: int,
        scale: float | None,
        is_scaled_loss: bool,
        one_gradient: bool,
    ) -> None:
        self._replicas = replicas
        self._one_gradient = one_gradient  # whether a step may have a single one
        self.is_scaled_loss = is_scaled_loss
        self.set_accumulation(accumulation)
        self.set_scale(self.num_gradients if scale is None else scale)

    @property
    def num_gradients(self) -> int:
        """Micro-gradients of a step, over all replicas."""
        return self._replicas.size * self.accumulation

    def set_accumulation(self, count: int) -> None:
        """Set how many micro-batches each replica accumulates."""
        count = whole_number(count, name="num_gradients_to_accumulate")
        if self._replicas.size * count == 1 and not self._one_gradient:
            raise SingleWorkerError(
                "num_gradients_to_accumulate is 1 on one worker; expected at least 2 gradients a step, because signal "
                "and noise cannot be separated in one. Accumulate more, or pass single_worker='differences' to "
                "AdaScale."
            )
        self.accumulation = count

    def set_scale(self, scale: float) -> None:
        """Set the batch, in base batches."""
        if not 1 <= scale < math.inf:
            raise ConfigError(f"scale is {scale}; expected 1 or more. Pass this batch over the base batch.")
        self.scale = scale
