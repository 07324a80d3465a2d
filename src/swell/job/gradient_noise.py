"""What is known of one optimizer's gradient noise, plain and in its metric; figures may arrive late."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from torch import Tensor

from swell.core.dual_noise import DualAverage, mean_of_pairs
from swell.core.moment_average import RECENT, MomentAverage
from swell.core.noise_judgement import cautious_noise
from swell.core.types import NoiseEstimate
from swell.gradients.host_figures import HostFigures
from swell.gradients.late_readings import LateReadings


class Reading(NamedTuple):
    """What the figures of a step mean: who wants the loss and, if there are more, how many gradients were compared."""

    report: Callable[[float | None], None]
    num_micro_batches: int = 0
    batch: int = 0
    samples_between: int = 0
    num_groups: int = 0
    urgent: bool = True  # whether the figures decide something, or must be there on all replicas at the same step
    work_out: Callable[[list[float]], list[float]] | None = None  # makes the figures of the numbers that were read


class GradientNoise:
    """Two moving averages of signal and noise, fed with the figures that each step leaves on the device.

    ``metric`` says what the rule looks at, and so what the second average is of: gradients in Adam's metric or in a
    dual norm, or nothing.
    """

    def __init__(
        self, *, base_batch: int, metric: Literal["plain", "preconditioned", "dual"] = "plain", exact: bool
    ) -> None:
        self.plain = MomentAverage(base_batch=base_batch, share=RECENT)
        self._dual = DualAverage(base_batch=base_batch, share=RECENT) if metric == "dual" else None
        self.preconditioned = MomentAverage(base_batch=base_batch, share=RECENT)
        self._by_metric = metric == "preconditioned"
        self._unpaired = 0  # samples of measured steps in which no replica could compare two gradients
        self._judged: tuple[NoiseEstimate | None, NoiseEstimate | None] = (None, None)  # what the verdict is about
        self._verdict: NoiseEstimate | None = None
        self._readings: LateReadings[Reading] = LateReadings(exact=exact)
        self.reports_loss = True  # whether the loop hands over its losses, for the log

    @property
    def metric(self) -> MomentAverage | DualAverage:
        """The average in the metric that the rule looks at, if that is not the plain one."""
        return self.preconditioned if self._dual is None else self._dual

    @property
    def window(self) -> float:
        """Base batches that figures are averaged over."""
        return self.plain.window

    @window.setter
    def window(self, window: float) -> None:
        self.plain.window = self.metric.window = window

    def average_with(self, make: Callable[[], MomentAverage]) -> None:
        """Average in another way from now on; what was measured is dropped."""
        assert self._dual is None, "a dual norm has an average of its own"
        self.plain, self.preconditioned = make(), make()

    def push(self, figures: Tensor, reading: Reading) -> None:
        """Take the figures of a step: the loss, squared norms of small gradients and of the whole one, those of a pair.

        The latter only where the metric is a dual norm.
        """
        for values, earlier in self._readings.push(figures, reading, urgent=reading.urgent):
            self._learn(values, earlier)

    def pass_loss(
        self, loss: Tensor | float | HostFigures, report: Callable[[float | None], None], *, urgent: bool, stays: bool
    ) -> None:
        """Pass on the loss of a step that left nothing else, after those of the steps before it.

        ``stays`` if its memory is not used for the next one.
        """
        if isinstance(loss, HostFigures):
            parts, reading = loss.parts, Reading(report, urgent=urgent, work_out=loss.work_out)
        elif isinstance(loss, Tensor):
            parts, reading = [loss], Reading(report, urgent=urgent)
        else:
            self.drain()
            report(loss if self.reports_loss else None)
            return
        if urgent or not stays:
            self.push(loss.numbers() if isinstance(loss, HostFigures) else loss, reading)
            return
        for values, earlier in self._readings.hold(parts, reading):
            self._learn(values, earlier)

    def drain(self) -> None:
        """Wait for figures that are still on their way from the device."""
        for values, reading in self._readings.drain():
            self._learn(values, reading)

    def _learn(self, values: list[float], reading: Reading) -> None:
        if not values:  # nobody knows
            reading.report(None)
            return
        if reading.work_out is not None:
            values = reading.work_out(values)
        loss, squares, groups = values[0], values[1:], reading.num_groups
        if self._dual is not None and squares:
            self._learn_dual(self._dual, squares[-2 * groups - 2 :], reading)
            squares = squares[: -2 * groups - 2]
        channels = len(squares) // (2 * groups) if groups else 0
        if reading.num_micro_batches > 1:
            for channel, average in zip(range(channels), (self.plain, self.preconditioned), strict=False):
                small = squares[channel * groups : (channel + 1) * groups]
                big = squares[(channels + channel) * groups : (channels + channel + 1) * groups]
                average.update(
                    list(zip(small, big, strict=True)),
                    count=reading.num_micro_batches,
                    batch=reading.batch,
                    samples_between=reading.samples_between,
                )
        reading.report(loss if self.reports_loss else None)

    def _learn_dual(self, average: DualAverage, figures: list[float], reading: Reading) -> None:
        """Figures of a pair, summed over replicas: the reach by group, the spread, the root of sizes, the pairs."""
        *both, root, count = figures
        between, self._unpaired = reading.samples_between + self._unpaired, 0
        if count == 0:
            self._unpaired = between
            return
        half = len(both) // 2
        pair = mean_of_pairs(both[:half], both[half:], root=root, count=count)
        average.update(pair, batch=reading.batch, samples_between=between)

    def estimate(self) -> NoiseEstimate | None:
        """The estimate in the metric that the learning-rate rule uses; the cautious one where there are two.

        In a dual norm there is one, because the plain noise says little of steps by signs or orthogonal matrices.
        """
        plain, metric = self.plain.estimate(), self.preconditioned.estimate() if self._by_metric else None
        if self._dual is not None:
            return self._dual.estimate() or plain
        if plain is not self._judged[0] or metric is not self._judged[1]:
            self._judged, self._verdict = (plain, metric), cautious_noise(plain, metric)
        return self._verdict

    def reset(self) -> None:
        """Drop what was measured."""
        self.plain.reset()
        self.metric.reset()
        self._unpaired = 0

    def state_dict(self) -> dict[str, Any]:
        """Both averages."""
        state = {"noise": self.plain.state_dict(), "preconditioned_noise": self.preconditioned.state_dict()}
        return state if self._dual is None else {**state, "dual_noise": self._dual.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; what a run by another rule did not measure starts again."""
        self.plain.load_state_dict(state["noise"])
        self.preconditioned.load_state_dict(state["preconditioned_noise"])
        self._unpaired = 0
        if self._dual is not None:
            self._dual.reset()
            if "dual_noise" in state:
                self._dual.load_state_dict(state["dual_noise"])
