"""Signal and noise over the steps so far, with and without the step in progress."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from swell.compat.fairscale.averages import Averages
from swell.compat.fairscale.observation import MicroGradientObservation, PairObservation
from swell.core.types import ScaleState
from swell.errors import ConfigError


class GradientStatistics:
    """Averages of plain gradients and, if the rule needs them, of gradients in the optimizer's own metric.

    An observation counts in ``current`` at once. It enters ``averages`` when the step is taken, so the observation of
    gradients that are thrown away leaves no trace.
    """

    def __init__(self, num_groups: int, *, debias: bool, with_metric: bool) -> None:
        self.averages = [Averages(num_groups, debias=debias) for _ in range(2 if with_metric else 1)]
        self.dropped = 0
        self.smoothing = 0.0
        self._observation: MicroGradientObservation | PairObservation | None = None
        self._updated: list[Averages] | None = None  # the averages with the observation in them

    @property
    def num_groups(self) -> int:
        """Parameter groups."""
        return len(self.averages[0].signal)

    def set_smoothing(self, smoothing: float) -> None:
        """Set the weight of the past in each new average."""
        if not 0 <= smoothing < 1:
            raise ConfigError(
                f"smoothing is {smoothing}; expected 0 or more and less than 1. Pass the weight of the past in each "
                "new average."
            )
        self.smoothing = smoothing

    def observe(self, observation: MicroGradientObservation | PairObservation | None) -> None:
        """Replace the observation of the step in progress."""
        self._observation, self._updated = observation, None

    def drop(self) -> None:
        """Forget the observation, because its step is skipped, and count it."""
        self.dropped += self._observation is not None
        self.observe(None)

    def unscale(self, scale: float) -> None:
        """Take a factor that the gradients had out of their observation."""
        if self._observation is not None:
            self._observation.unscale(scale)
            self._updated = None

    def current(self) -> list[Averages]:
        """The averages with the step in progress in them; reads the device once a step."""
        if self._observation is None:
            return self.averages
        if self._updated is None:
            moments, groups = self._observation.moments(), self.num_groups
            if not all(math.isfinite(m.signal) and math.isfinite(m.noise) for m in moments):
                self.drop()
                return self.averages
            updated = list(self.averages)  # the second one stays as it is until its metric is warm
            for number in range(len(moments) // groups):
                part = moments[number * groups : (number + 1) * groups]
                updated[number] = updated[number].updated(part, smoothing=self.smoothing)
            self._updated = updated
        return self._updated

    def scale_state(self, group: int | None, *, scale: float, progress: float) -> ScaleState:
        """What a rule is given for one parameter group, or for all together; a base batch counts as one sample."""
        plain, *metric = self.current()
        return ScaleState(
            scale=scale,
            base_batch=1,
            moments=plain.moments(group),
            preconditioned=metric[0].moments(group) if metric and metric[0].count else None,
            progress=progress,
        )

    def rescale(self, factor: float) -> None:
        """Multiply the noise, the step in progress included, as FairScale does when the scale changes."""
        self.averages = self.current()
        for averages in self.averages:
            averages.rescale(factor)
        self.observe(None)

    def add_group(self) -> None:
        """Make room for one more parameter group."""
        self.averages = self.current()
        for averages in self.averages:
            averages.add_group()

    def from_checkpoint(self, states: Sequence[Mapping[str, Any]]) -> list[Averages]:
        """The averages of a checkpoint, and new ones for a metric that it does not have."""
        groups = self.num_groups
        loaded = [Averages.from_state_dict(state, num_groups=groups) for state in states[: len(self.averages)]]
        return loaded + [Averages(groups, debias=own.debias) for own in self.averages[len(loaded) :]]


def default_smoothing(num_gradients: int) -> float:
    """FairScale's weight of the past for a number of gradients a step, counted over all replicas."""
    return max(1 - num_gradients / 1000, 0.0)
