"""What telemetry computes, the slow, obvious way."""

from __future__ import annotations

import math


def smoothed(values: list[float], samples: list[float], *, over: float) -> list[float]:
    """At each step the mean of all values so far, weighted by the step's size and by how long ago it was."""
    sizes = [now - before for before, now in zip([0.0, *samples], samples, strict=False)]
    result = []
    for i in range(len(values)):
        counted = [j for j in range(i + 1) if math.isfinite(values[j])]
        latest = samples[counted[-1]] if counted else 0.0  # only ratios matter, and weights after it could vanish
        weights = [
            sizes[j] * math.exp(-(latest - samples[j]) / over) if math.isfinite(values[j]) else 0.0
            for j in range(i + 1)
        ]
        total = sum(weight * value for weight, value in zip(weights, values, strict=False) if weight)
        result.append(total / sum(weights) if sum(weights) > 0 else math.nan)
    return result
