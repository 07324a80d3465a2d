"""Signal and noise of a gradient on one replica, from the difference between the gradients of two steps."""

from __future__ import annotations

from torch import Tensor

from swell.core.moments import consecutive_differences
from swell.job.learner import Learner


class ConsecutiveGradients:
    """Keeps a copy of each step's gradient for comparison with the next one. The estimate of the noise is too high."""

    def __init__(self) -> None:
        self._previous: list[list[Tensor | None]] = []  # as they are, then in Adam's metric

    def measure(self, learner: Learner, batch: int) -> None:
        """Compare the learner's gradients, of a step of ``batch`` samples, with those of the step before."""
        gradients = [parameter.grad for parameter in learner.gradients.parameters]
        present = [gradients]
        if learner.wants_preconditioned:
            present.append(learner.gradients.preconditioner.divide(learner.gradients.parameters, gradients))
        averages = (learner.noise.plain, learner.noise.preconditioned)
        for average, old, new in zip(averages, self._previous, present, strict=False):
            difference = [None if a is None or b is None else b.to_dense() - a for a, b in zip(old, new, strict=True)]
            squares = [learner.gradients.norms.squares(each).tolist() for each in (old, new, difference)]
            average.update_moments(
                [
                    consecutive_differences(first, second, (first + second - apart) / 2, batch=batch)
                    for first, second, apart in zip(*squares, strict=True)
                ],
                batch=batch,
            )
        self._previous = [[None if g is None else g.detach().to_dense().clone() for g in each] for each in present]
