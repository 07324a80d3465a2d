"""What is known of one optimizer's gradient noise, plain and in Adam's metric; figures may arrive late."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from swell.core.moment_average import RECENT, MomentAverage
from swell.core.noise_judgement import cautious_noise
from swell.core.types import NoiseEstimate
from swell.gradients.late_readings import LateReadings


class Reading(NamedTuple):
    """What the figures of one step mean: how many gradients were compared, and who wants the loss."""

    num_micro_batches: int
    batch: int
    samples_between: int
    num_groups: int
    report: Callable[[float | None], None]
    urgent: bool = True  # whether the figures decide something, or must be there on all replicas at the same step


class GradientNoise:
    """Two moving averages of signal and noise, fed with the figures that each step leaves on the device."""

    def __init__(self, *, base_batch: int, by_metric: bool, exact: bool) -> None:
        self.plain = MomentAverage(base_batch=base_batch, share=RECENT)
        self.metric = MomentAverage(base_batch=base_batch, share=RECENT)
        self._by_metric = by_metric
        self._judged: tuple[NoiseEstimate | None, NoiseEstimate | None] = (None, None)  # what the verdict is about
        self._verdict: NoiseEstimate | None = None
        self._readings: LateReadings[Reading] = LateReadings(exact=exact)
        self.reports_loss = True  # whether the loop hands over its losses, for the log

    @property
    def window(self) -> float:
        """Base batches that figures are averaged over."""
        return self.plain.window

    @window.setter
    def window(self, window: float) -> None:
        self.plain.window = self.metric.window = window

    def average_with(self, make: Callable[[], MomentAverage]) -> None:
        """Average in another way from now on; what was measured is dropped."""
        self.plain, self.metric = make(), make()

    def push(self, figures: Tensor, reading: Reading) -> None:
        """Take the figures of a step: the loss, then squared norms of small gradients, then of the whole one."""
        for values, earlier in self._readings.push(figures, reading, urgent=reading.urgent):
            self._learn(values, earlier)

    def pass_loss(self, loss: float, report: Callable[[float | None], None]) -> None:
        """Pass on the loss of a step that left nothing else, after those of the steps before it."""
        self.drain()
        report(loss if self.reports_loss else None)

    def drain(self) -> None:
        """Wait for figures that are still on their way from the device."""
        for values, reading in self._readings.drain():
            self._learn(values, reading)

    def _learn(self, values: list[float], reading: Reading) -> None:
        loss, squares, groups = values[0], values[1:], reading.num_groups
        channels = len(squares) // (2 * groups) if groups else 0
        if reading.num_micro_batches > 1:
            for channel, average in zip(range(channels), (self.plain, self.metric), strict=False):
                small = squares[channel * groups : (channel + 1) * groups]
                big = squares[(channels + channel) * groups : (channels + channel + 1) * groups]
                average.update(
                    list(zip(small, big, strict=True)),
                    count=reading.num_micro_batches,
                    batch=reading.batch,
                    samples_between=reading.samples_between,
                )
        reading.report(loss if self.reports_loss else None)

    def estimate(self) -> NoiseEstimate | None:
        """The estimate in the metric that the learning-rate rule uses; the cautious one where there are two."""
        plain, metric = self.plain.estimate(), self.metric.estimate() if self._by_metric else None
        if plain is not self._judged[0] or metric is not self._judged[1]:
            self._judged, self._verdict = (plain, metric), cautious_noise(plain, metric)
        return self._verdict

    def reset(self) -> None:
        """Drop what was measured."""
        self.plain.reset()
        self.metric.reset()

    def state_dict(self) -> dict[str, Any]:
        """Both averages."""
        return {"noise": self.plain.state_dict(), "preconditioned_noise": self.metric.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self.plain.load_state_dict(state["noise"])
        self.metric.load_state_dict(state["preconditioned_noise"])
