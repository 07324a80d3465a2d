"""Student's t: how far the mean of a few observations may be off.

scipy has it too, but takes up to half a second to import, in the second step of a run that measures noise.
"""

from __future__ import annotations

import math

_NORMAL = 1.959963984540054  # half of a 95 % interval of the normal distribution, in standard deviations
_LOG_BEYOND = math.log(0.05)  # the probability outside it
_MANY = 30.0  # degrees from which a series is right to seven digits
_CLOSE = 1e-9
_CLOSER = 1e-12  # a step is computed more exactly than it is asked to be, so that the steps come to an end


def student_t(degrees: float) -> float:
    r"""Half of a 95 % interval, in standard errors: the t with :math:`P(|T| > t) = 0.05`, for any positive degrees.

    >>> round(student_t(4), 3), round(student_t(1e9), 3)
    (2.776, 1.96)
    """
    return _by_series(degrees) if degrees >= _MANY else _by_newton(degrees)


def _by_series(degrees: float) -> float:
    """The expansion by Cornish and Fisher in powers of 1 / degrees."""
    square = _NORMAL**2
    terms = (
        (square + 1) / 4,
        ((5 * square + 16) * square + 3) / 96,
        (((3 * square + 19) * square + 17) * square - 15) / 384,
        ((((79 * square + 776) * square + 1482) * square - 1920) * square - 945) / 92160,
    )
    return _NORMAL * (1 + sum(term / degrees**power for power, term in enumerate(terms, start=1)))


def _by_newton(degrees: float) -> float:
    """Newton's method in logarithms, in which the tail is nearly a line."""
    a = degrees / 2
    log_beta = math.lgamma(a) + math.lgamma(0.5) - math.lgamma(a + 0.5)
    t, change = _NORMAL, 1.0
    while abs(change) > _CLOSE:
        x = degrees / (degrees + t * t)
        log_front = a * math.log(x) - log_beta
        beyond = math.sqrt(1 - x) / a * _continued_fraction(a, x)  # both without the factor of ``log_front``
        density = 2 * math.sqrt(x / degrees)
        change = (log_front + math.log(beyond) - _LOG_BEYOND) * beyond / (t * density)
        t *= math.exp(change)
    return t


def _continued_fraction(a: float, x: float) -> float:
    r"""The f of the incomplete beta function :math:`I_x(a, b) = x^a (1 - x)^b f / (a B(a, b))` at b = 1/2, by Lentz."""
    numerator, denominator = 1.0, 1.0 / (1 - (a + 0.5) * x / (a + 1))
    value, change, m = denominator, 2.0, 0
    while abs(change - 1) > _CLOSER:
        m += 1
        low, high = a + 2 * m - 1, a + 2 * m + 1
        for term in (m * (0.5 - m) * x / (low * (low + 1)), -(a + m) * (a + 0.5 + m) * x / ((high - 1) * high)):
            denominator = 1 / (1 + term * denominator)
            numerator = 1 + term / numerator
            change = numerator * denominator
            value *= change
    return value
