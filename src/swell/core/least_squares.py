"""Bounded robust least squares for a few unknowns, without the cost of starting a general solver."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_MOST_TRIES = 60
_DAMPING = 1e-3  # at first, of the curvature by each unknown
_EASIER, _HARDER = 0.2, 4.0  # how the damping changes after a step that lowered the cost, and after one that did not

System = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # residuals and their slopes


def robust_cost(residuals: np.ndarray, *, scale: float) -> float:
    """Half the sum of squares of small residuals; those above ``scale`` count by their size instead of its square.

    >>> robust_cost(np.array([1.0, 100.0]), scale=2.0).__round__(1)
    196.5
    """
    return float(scale**2 * (np.sqrt(1 + (residuals / scale) ** 2).sum() - len(residuals)))


def least_squares(
    system: System, start: np.ndarray, *, low: np.ndarray, high: np.ndarray, scale: float, tolerance: float = 1e-3
) -> np.ndarray:
    """Where ``robust_cost`` of the residuals is least between the bounds, by damped Gauss-Newton steps from ``start``.

    An unknown that presses against its bound rests there. It ends when two steps in a row lower the cost by less than
    ``tolerance`` of it.
    Reference: Triggs et al., Bundle adjustment, 2000, sections 2 and 4: robust losses as weights; Levenberg's damping.

    >>> points = np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.1, 3.9, 60.0, 8.0])  # about y = 2 x, and an outlier
    >>> line = lambda slope: (slope * points[0] - points[1], points[0][:, None])
    >>> bounds = {"low": np.array([0.0]), "high": np.array([10.0])}
    >>> bool(least_squares(line, np.array([1.0]), scale=0.1, **bounds)[0] < 2.2)
    True
    """
    at, damping, small_gains = np.clip(start, low, high), _DAMPING, 0
    residuals, slopes = system(at)
    cost = robust_cost(residuals, scale=scale)
    for _ in range(_MOST_TRIES):
        weights = 1 / np.sqrt(1 + (residuals / scale) ** 2)
        weighted = slopes * weights[:, None]
        gradient, curvature = weighted.T @ residuals, weighted.T @ slopes
        resting = ((at <= low) & (gradient > 0)) | ((at >= high) & (gradient < 0))
        if resting.any():
            curvature[resting], curvature[:, resting], gradient[resting] = 0.0, 0.0, 0.0
        diagonal = curvature.diagonal() + 1e-12
        while damping < 1e9:
            damped = curvature.copy()
            damped.flat[:: len(at) + 1] += damping * diagonal + resting
            there = np.minimum(np.maximum(at - np.linalg.solve(damped, gradient), low), high)
            new_residuals, new_slopes = system(there)
            new_cost = robust_cost(new_residuals, scale=scale)
            if new_cost <= cost:
                break
            damping *= _HARDER
        else:
            break
        gained, damping = cost - new_cost, max(damping * _EASIER, 1e-9)
        at, residuals, slopes, cost = there, new_residuals, new_slopes, new_cost
        small_gains = small_gains + 1 if gained <= tolerance * cost else 0
        if small_gains == 2:
            break
    return at
