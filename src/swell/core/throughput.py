"""How long steps take on any number of workers: a law fitted to measured steps, and its error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np

from swell.core.least_squares import least_squares
from swell.core.step_time import (
    AXES,
    GAMMA,
    Numbers,
    Params,
    links,
    micro_batch_seconds,
    predict,
    step_seconds,
    table,
    to_params,
    to_theta,
)
from swell.core.types import StepSummary
from swell.errors import ConfigError

__all__ = ["Fit", "Params", "Prediction", "fit", "predict"]

# Relative deviations:
_ODDITY = 0.03  # of a real machine from the law, at any one point
_JITTER = 0.10  # of one step's time from the median
_SYNC_ODDITY = 0.15  # of the exchange, as timed from outside, from the law's T_n
_OUTLIER = 2.0  # standard deviations beyond which a measurement counts less than by its square
_UNSEEN = 0.5  # least error for a kind of link that was never measured


class Prediction(NamedTuple):
    """Predicted step times and their relative errors (one standard deviation), element by element."""

    step_s: np.ndarray
    error: np.ndarray


@dataclass(frozen=True, eq=False, kw_only=True)
class Fit:
    """The law that fits the measured steps, and how far to trust it elsewhere."""

    params: Params
    covariance: np.ndarray  # of the logarithms of alpha_c, beta_c, alpha_r, beta_r, alpha_n, beta_n, alpha_s; of gamma
    misfit: float  # relative deviation of the machine from the law
    points: tuple[StepSummary, ...]
    _steps: np.ndarray = field(repr=False)
    _slopes: np.ndarray = field(repr=False)  # of log T by theta, at the points
    _precision: np.ndarray = field(repr=False)  # inverse covariance of the points' residuals, given theta
    _residuals: np.ndarray = field(repr=False)

    def predict(self, *, replicas: Numbers, nodes: Numbers, micro_batch: Numbers, accumulation: Numbers) -> Prediction:
        """Step times in seconds with their relative errors; the arguments are broadcast.

        A Gaussian process over the residuals bends the law towards nearby measurements, so a machine that is not quite
        linear is predicted well where it was measured. The error combines the spread of the constants and the misfit of
        the law, reduced by nearby measurements. For a kind of link that was never measured it is at least one half.
        Reference: Rasmussen and Williams, Gaussian Processes for Machine Learning, section 2.7.
        """
        shape, steps = table(replicas, nodes, micro_batch, accumulation)
        step_s, slopes = step_seconds(to_theta(self.params), steps)
        near = self.misfit**2 * _closeness(steps, self._steps)
        pull = near @ self._precision
        slopes = slopes - pull @ self._slopes
        variance = self.misfit**2 - np.sum(pull * near, axis=1) + np.sum(slopes @ self.covariance * slopes, axis=1)
        error = np.sqrt(np.maximum(variance, 0.0))
        link = links(steps)
        unseen = (link > 0) & ~np.isin(link, links(self._steps))
        error = np.where(unseen, np.maximum(error, _UNSEEN), error)
        return Prediction((step_s * np.exp(pull @ self._residuals)).reshape(shape), error.reshape(shape))


def fit(points: Sequence[StepSummary], prior: Params | None = None) -> Fit:
    """The law that fits these measurements best, by bounded robust least squares of the logarithms of times.

    Priors replace missing measurements and fade as points are added: with one micro-batch size, half of the computing
    time is constant; exchange between nodes is slower than within one; each further replica adds a fiftieth of the
    first exchange; the update takes a fiftieth of a micro-batch. ``prior`` replaces them by known constants, for
    example of an earlier run on such machines. Takes about a millisecond. ``ConfigError`` if no step was measured.

    >>> steps = [StepSummary(replicas=1, nodes=1, micro_batch=b, accumulation=1, step_s=0.01 + b / 1000, count=16)
    ...          for b in (16, 32, 64, 128)]
    >>> time, error = fit(steps).predict(replicas=1, nodes=1, micro_batch=256, accumulation=1)
    >>> bool(abs(time / 0.266 - 1) < 0.05), bool(error < 0.15)
    (True, True)
    """
    points = tuple(points)
    step_s, sync_s, count = (np.array([getattr(p, n) for p in points], float) for n in ("step_s", "sync_s", "count"))
    if not points or not np.all(np.isfinite(step_s) & (step_s > 0) & (sync_s >= 0) & (count > 0)):
        raise ConfigError(
            f"points has {len(points)} measurements {points[:3]}; expected at least one to fit step times to, each "
            "with a count and a finite time above 0. Train a few steps first, and leave out steps that were not timed."
        )
    _, steps = table(*(np.array([getattr(point, axis) for point in points], float) for axis in AXES))
    timed = (sync_s > 0) & (sync_s < step_s)  # where the exchange was timed, so was the computing
    computing_s = np.where(timed, step_s - sync_s, step_s) / steps[:, 3]
    centre, rows = _prior(steps, computing_s, prior)
    sigma = np.sqrt(_ODDITY**2 + _JITTER**2 / count)
    log_s = np.log(step_s)

    def everywhere(guess: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        time, slopes = step_seconds(guess, steps)
        part, part_slopes = micro_batch_seconds(guess, steps[timed])
        residuals = ((np.log(time) - log_s) / sigma, np.log(part / computing_s[timed]) / _SYNC_ODDITY)
        jacobian = (slopes / sigma[:, None], part_slopes / _SYNC_ODDITY, rows)
        return np.concatenate((*residuals, rows @ (guess - centre))), np.concatenate(jacobian)

    low, high = np.full(8, centre[0] - 30.0), np.full(8, centre[0] + 15.0)
    low[7], high[7] = GAMMA
    theta = centre.copy()
    if np.any(steps[:, 0] > 1) or np.any(timed):
        theta = least_squares(everywhere, centre, low=low, high=high, scale=_OUTLIER)
    else:  # no exchange was measured: its constants stay at the centre of their prior
        few = [0, 1, 6]
        system = _alone(steps, log_s, sigma, centre[few], rows[:, few])
        theta[few] = least_squares(system, centre[few], low=low[few], high=high[few], scale=_OUTLIER)
    return _settled(theta, points, steps, log_s, sigma, rows)


def _alone(
    steps: np.ndarray, log_s: np.ndarray, sigma: np.ndarray, centre: np.ndarray, pulls: np.ndarray
) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """The system for steps without an exchange, which has three unknowns: a choice waits for it in every short step."""
    micro, accumulation, count = steps[:, 2], steps[:, 3], len(steps)
    pulls = pulls[np.any(pulls, axis=1)]

    def system(guess: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        fixed, growing, once = math.exp(guess[0]), math.exp(guess[1]) * micro, math.exp(guess[2])
        time = accumulation * (fixed + growing) + once
        residuals, jacobian = np.empty(count + len(pulls)), np.empty((count + len(pulls), 3))
        residuals[:count] = (np.log(time) - log_s) / sigma
        residuals[count:] = pulls @ (guess - centre)
        time *= sigma
        jacobian[:count, 2] = once / time
        per_sample = accumulation / time
        jacobian[:count, 0], jacobian[:count, 1] = fixed * per_sample, growing * per_sample
        jacobian[count:] = pulls
        return residuals, jacobian

    return system


def _settled(
    theta: np.ndarray,
    points: tuple[StepSummary, ...],
    steps: np.ndarray,
    log_s: np.ndarray,
    sigma: np.ndarray,
    rows: np.ndarray,
) -> Fit:
    """The fit with all that its predictions need, computed once."""
    if not np.any(links(steps) == 2):  # like AdaptDL: the network between nodes is not faster than the one within
        theta[4:6] = np.maximum(theta[4:6], theta[2:4] + math.log(1.1))
    time, slopes = step_seconds(theta, steps)
    residuals = log_s - np.log(time)
    information = slopes.T @ (slopes / sigma[:, None] ** 2)
    settled = float(np.trace(np.linalg.solve(information + rows.T @ rows, information)))  # constants the points fixed
    strays = float(np.sum(np.clip(residuals, -0.3, 0.3) ** 2))
    misfit = math.sqrt((strays + 4 * _ODDITY**2) / (max(len(points) - settled, 0.0) + 4))
    # An outlier is not trusted at its own place either. If the law fits badly everywhere, there are no outliers.
    trust = 1 / (1 + (residuals / np.maximum(4 * sigma, 3 * misfit)) ** 2)
    noise = _JITTER**2 / np.array([point.count for point in points], float) / trust**2
    precision = np.linalg.inv(misfit**2 * _closeness(steps, steps) + np.diag(noise))
    return Fit(
        params=to_params(theta),
        covariance=np.linalg.inv(slopes.T @ precision @ slopes + rows.T @ rows),
        misfit=misfit,
        points=points,
        _steps=steps,
        _slopes=slopes,
        _precision=precision,
        _residuals=residuals,
    )


def _prior(steps: np.ndarray, computing_s: np.ndarray, known: Params | None) -> tuple[np.ndarray, np.ndarray]:
    """The prior of theta: a centre, and rows r such that r·(theta − centre) ~ N(0, 1)."""
    if known is not None:
        return to_theta(known), np.eye(8) / np.array([0.5] * 7 + [1.0])
    least = steps[:, 0] == steps[:, 0].min()  # the smallest world, where the exchange adds least to the computing
    time, micro = (float(np.exp(np.mean(np.log(x[least])))) for x in (computing_s, steps[:, 2]))
    exchange, between, further = math.log(time / 5), math.log(2), math.log(1 / 50)
    centre = np.zeros(8)
    centre[0], centre[1], centre[6], centre[7] = (
        math.log(time / 2),
        math.log(time / 2 / micro),
        math.log(time / 50),
        1.5,
    )
    centre[2:6] = exchange, exchange + further, exchange + between, exchange + between + further
    return centre, _beliefs()


@cache
def _beliefs() -> np.ndarray:
    beliefs = (
        ({0: 1}, 1.5),
        ({1: 1}, 1.5),
        ({2: 1}, 2.0),
        ({4: 1}, 2.0),
        ({4: 1, 2: -1}, 1.0),  # between nodes about twice as slow as within one, so either informs the other
        ({3: 1, 2: -1}, 1.0),
        ({5: 1, 4: -1}, 1.0),
        ({6: 1}, 1.5),
        ({7: 1}, 1.5),
    )
    rows = np.zeros((len(beliefs), 8))
    for row, (weights, deviation) in zip(rows, beliefs, strict=True):
        for column, weight in weights.items():
            row[column] = weight / deviation
    return rows


def _closeness(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The correlation of two steps' misfits, 0 to 1, by the number of doublings between their layouts.

    Half of a misfit is shared over about an octave; the other half belongs to the one configuration.
    """
    octaves = np.array([1.0, 1.0, 1.0, 1.5])
    rows, columns = (np.log2(np.maximum(steps, 1e-9)) / octaves for steps in (left, right))
    distance = np.sum((rows[:, None, :] - columns[None, :, :]) ** 2, axis=2)
    distance = distance + 2.0 * (links(left)[:, None] != links(right)[None, :])
    return 0.5 * np.exp(-distance / 2) + 0.5 * np.exp(-distance / 0.02)
