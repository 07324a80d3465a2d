"""Signal, noise and their ratio straight from the definitions: all gradients and all observations are kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


def between_groups(gradients: np.ndarray, sizes: Sequence[int]) -> tuple[float, float]:
    """Signal and noise of one step as an analysis of variance: the spread of small means about the whole mean."""
    batch = sum(sizes)
    mean = sum(size * gradient for size, gradient in zip(sizes, gradients, strict=True)) / batch
    spread = sum(size * float(np.sum((gradient - mean) ** 2)) for size, gradient in zip(sizes, gradients, strict=True))
    noise = spread / (len(sizes) - 1)
    return float(np.sum(mean**2)) - noise / batch, noise


@dataclass
class Observed:
    """One remembered observation of the whole gradient."""

    signal: float
    noise: float
    batch: float
    passed: float  # samples since the one before


def weights(observed: Sequence[Observed], *, memory: float, share: float = math.inf) -> list[float]:
    """How much each observation counts now: by its own samples, less for all samples after it."""
    result = []
    for index, one in enumerate(observed):
        weight = 1 - math.exp(-one.batch / memory)
        for after in range(index + 1, len(observed)):
            age = sum(earlier.passed for earlier in observed[: after + 1])
            weight *= math.exp(-observed[after].passed / min(memory, share * age))
        result.append(weight)
    return result


def weighted_mean(values: Sequence[float], by: Sequence[float]) -> float:
    return sum(v * w for v, w in zip(values, by, strict=True)) / sum(by)


def covariances_of_means(observed: Sequence[Observed], *, memory: float) -> tuple[float, float, float, float]:
    """Variance of the mean signal, of the mean noise, their covariance, and the effective number of observations."""
    by = weights(observed, memory=memory)
    signals, noises = [o.signal for o in observed], [o.noise for o in observed]
    signal, noise = weighted_mean(signals, by), weighted_mean(noises, by)
    effective = sum(by) ** 2 / sum(w**2 for w in by)
    correction = effective / (effective - 1) / sum(by) ** 2
    rows = list(zip(by, signals, noises, strict=True))
    v_ss = correction * sum(w**2 * (s - signal) ** 2 for w, s, _ in rows)
    v_nn = correction * sum(w**2 * (n - noise) ** 2 for w, _, n in rows)
    v_sn = correction * sum(w**2 * (s - signal) * (n - noise) for w, s, n in rows)
    return v_ss, v_nn, v_sn, effective


def contradiction(ratio: float, *, signal: float, noise: float, variances: tuple[float, float, float]) -> float:
    """How many standard errors the estimates lie from having this ratio."""
    v_ss, v_nn, v_sn = variances
    error = math.sqrt(max(v_nn - 2 * ratio * v_sn + ratio**2 * v_ss, 0.0))
    return math.inf if error == 0 else abs(noise - ratio * signal) / error


def quantile(effective: float) -> float:
    return float(stats.t.ppf(0.975, effective - 1))
