"""The gradient noise of a Keras run, from figures that are read some steps after they were measured."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from swell.core.moment_average import RECENT, MomentAverage
from swell.core.noise_judgement import cautious_noise
from swell.core.types import Moments, NoiseEstimate
from swell.integrations.keras.step import Step


class Squares(NamedTuple):
    """Mean squared gradient norms of a step's passes, and the squared norm of its whole gradient."""

    small: float
    big: float


Readings = tuple[Squares, Squares]  # of the gradient itself, and in the optimizer's metric


class NoiseMeter:
    """Averages the figures of measured steps, of the gradient itself and in the optimizer's metric."""

    def __init__(self, *, base_batch: int) -> None:
        self._plain = MomentAverage(base_batch=base_batch, share=RECENT)
        self._metric = MomentAverage(base_batch=base_batch, share=RECENT)
        self._pending: deque[tuple[Step, int, Callable[[], Readings]]] = deque()
        self._measured_at = 0  # samples up to the latest measured step, that one included

    @property
    def window(self) -> float:
        """How far back the averages remember, in base batches."""
        return self._plain.window

    @window.setter
    def window(self, window: float) -> None:
        self._plain.window = self._metric.window = window

    def estimate(self, *, preconditioned: bool) -> NoiseEstimate | None:
        """The noise to act on: the cautious one of both metrics if the rule looks at the optimizer's."""
        return cautious_noise(self._plain.estimate(), self._metric.estimate() if preconditioned else None)

    def moments(self) -> tuple[Moments | None, Moments | None]:
        """Signal and noise of the gradient itself, and in the optimizer's metric, for a rule."""
        plain, metric = self._plain.estimate(), self._metric.estimate()
        return plain and plain.total, metric and metric.total

    def add(self, step: Step, read: Callable[[], Readings], *, samples: int) -> None:
        """Take in a measured step; ``read`` gives its figures later, ``samples`` is the run's total with this step."""
        self._pending.append((step, samples - self._measured_at, read))
        self._measured_at = samples

    def learn(self, until: int) -> None:
        """Read the figures of every step up to number ``until``, in order."""
        while self._pending and self._pending[0][0].index <= until:
            step, samples_between, read = self._pending.popleft()
            plain, metric = read()
            settings = {"count": step.num_passes, "batch": step.count, "samples_between": samples_between}
            self._plain.update([plain], **settings)
            if step.preconditioned and metric.big > 0:
                self._metric.update([metric], **settings)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers; call ``learn`` first, because figures that were not read are left out."""
        return {
            "measured_at": self._measured_at,
            "noise": self._plain.state_dict(),
            "metric": self._metric.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; figures that were not read are dropped."""
        self._plain.load_state_dict(state["noise"])
        self._metric.load_state_dict(state["metric"])
        self._measured_at = int(state["measured_at"])
        self._pending.clear()
