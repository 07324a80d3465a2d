"""Which noise estimate to act on where a gradient was measured in two metrics."""

from __future__ import annotations

from swell.core.types import NoiseEstimate


def cautious_noise(plain: NoiseEstimate | None, metric: NoiseEstimate | None) -> NoiseEstimate | None:
    """The estimate with the smaller noise scale; if one is None, the other.

    ``plain`` is of the gradient itself, ``metric`` of the gradient in Adam's metric (None if the rule does not use it).
    A smaller noise scale promises less from a larger batch, so the batch is never too large for either metric. If both
    are equal, ``plain`` is returned.

    >>> from swell.core.types import Moments
    >>> def estimate(noise_scale):
    ...     moments = Moments(signal=1.0, noise=noise_scale)
    ...     return NoiseEstimate(total=moments, groups=(moments,), interval=(0.0, 1e9), observations=1)
    >>> cautious_noise(estimate(512.0), estimate(128.0)).total.noise_scale
    128.0
    """
    if plain is None or metric is None:
        return metric if plain is None else plain
    return min(plain, metric, key=lambda estimate: estimate.total.noise_scale)
