"""Signal and noise of a gradient from squared norms, and what a larger batch gains by them.

Small batches ``j = 1..J`` of ``b_j`` samples make one step of ``B`` samples: ``w_j = b_j / B``, mean gradients ``g_j``,
``g = sum_j w_j g_j``. Only squared norms of gradients are used, all in one metric: plain for SGD, divided by the root
of the second moment for Adam. ``moment_average`` makes an estimate of the figures of many steps.
"""

from __future__ import annotations

import math

from swell.core.types import Moments
from swell.errors import ConfigError


def estimate(small_squares: float, big_square: float, *, count: int, batch: float) -> Moments:
    r"""Signal and noise of one step, unbiased for small batches of uneven sizes too.

    .. math:: A = \sum_j w_j |g_j|^2, \quad N = |g|^2, \quad
              |G|^2 = \frac{J N - A}{J - 1}, \quad \operatorname{tr}\Sigma = \frac{B (A - N)}{J - 1}

    Args:
        small_squares: ``A``, the mean of the small batches' squared norms weighted by their samples.
        big_square: ``N``, the squared norm of the whole step's mean gradient, before clipping.
        count: ``J``, how many small batches the step had; at least 2.
        batch: ``B``, samples of the whole step.

    Either moment may be negative on a noisy step (the noise only by rounding): smooth before you divide. With equal
    sizes this is the usual formula, which is off by tens of percent for uneven ones.

    Reference: McCandlish et al. 2018, appendix A.1, https://arxiv.org/abs/1812.06162 (equal sizes).

    >>> estimate(5.0, 2.0, count=4, batch=8)
    Moments(signal=1.0, noise=8.0)
    """
    if count < 2:
        raise ConfigError(
            f"count is {count}; expected at least 2 small batches to separate signal from noise. Split a step into two "
            "micro-batches now and then, or use consecutive_differences."
        )
    _positive("batch", batch)
    return Moments(
        signal=(count * big_square - small_squares) / (count - 1),
        noise=batch * (small_squares - big_square) / (count - 1),
    )


def consecutive_differences(previous_square: float, square: float, dot: float, *, batch: float) -> Moments:
    r"""Signal and noise from the gradients ``a``, ``b`` of two steps of ``B`` samples, if nothing better exists.

    .. math:: |G|^2 = a \cdot b, \qquad \operatorname{tr}\Sigma = \tfrac{B}{2} |a - b|^2

    ``previous_square`` is ``|a|^2``, ``square`` is ``|b|^2``, ``dot`` is ``a . b``. This is :func:`estimate` with the
    two steps as small batches. It is **biased**, because the optimizer moved in between: with learning rate ``lr`` and
    Hessian ``H`` the signal is too small by about ``lr tr(H Sigma) / B`` (it may be negative), and the noise is too
    large by about ``lr tr(H Sigma) + B |G_b - G_a|^2 / 2``. Both increase the gain. Prefer to split a step in two now
    and then, which has no bias and needs no copy of a gradient. Use each gradient in one pair only: overlapping pairs
    are not independent and make the interval of a ``MomentAverage`` too narrow.

    Reference: Qiao et al. 2021 (Pollux), https://arxiv.org/abs/2008.12260, the differenced estimator of its agent.

    >>> consecutive_differences(4.0, 6.0, 3.0, batch=2)
    Moments(signal=3.0, noise=4.0)
    """
    _positive("batch", batch)
    return Moments(signal=dot, noise=batch * (previous_square + square - 2 * dot) / 2)


def gain(scale: float, moments: Moments | None, *, base_batch: float) -> float:
    r"""How many base steps one step at ``scale`` times the base batch is worth.

    .. math:: r = \frac{\sigma^2 + \mu^2}{\sigma^2 / \kappa + \mu^2}, \qquad
              \sigma^2 = \operatorname{tr}\Sigma / B_0, \quad \mu^2 = |G|^2, \quad \kappa = \text{scale}

    Between 1 and ``scale`` in either direction: near ``scale`` while noise dominates (or the signal is not positive),
    near 1 when the signal does (or the noise is not positive, or neither is). Without moments it is the cautious end
    of that range, ``min(1, scale)``: a larger batch gains nothing until it has been measured.

    Reference: Johnson et al. 2020 (AdaScale), section 3, https://arxiv.org/abs/2007.05105

    >>> gain(4.0, Moments(signal=1.0, noise=32.0), base_batch=32)
    1.6
    >>> gain(4.0, Moments(signal=-0.1, noise=32.0), base_batch=32)
    4.0
    """
    if not (0 < scale < math.inf and 0 < base_batch < math.inf):
        _positive("scale", scale)
        _positive("base_batch", base_batch)
    if moments is None:
        return min(1.0, scale)
    if math.isnan(moments.signal) or math.isnan(moments.noise):
        raise ConfigError(f"moments is {moments}; expected numbers. Pass smoothed moments, which are never NaN.")
    sigma2, mu2 = max(moments.noise, 0.0) / base_batch, max(moments.signal, 0.0)
    if sigma2 == 0:
        return 1.0
    ratio = mu2 / sigma2  # may overflow to infinity; then the noisy part is 0
    noisy = 1 / (1 + ratio)  # the noise's part of a base batch's expected squared norm
    low, high = sorted((1.0, float(scale)))
    return min(max(1 / (noisy / scale + (1 - noisy)), low), high)


def efficiency(batch: float, *, base_batch: float, noise_scale: float, power: float = 1.0) -> float:
    r"""Progress per sample at ``batch``, relative to progress per sample at the base batch.

    .. math:: \mathrm{EFF}(B) = \left( \frac{\varphi + B_0}{\varphi + B} \right)^p

    ``power`` is p: 1 for Pollux's law, 0.5 where a step is worth the mean of its samples and its gain. ``noise_scale``
    is :math:`\varphi`, noise / signal in samples. If it is infinite, a sample is worth the same at any batch.
    With a power of 1 the result equals ``gain(B / B0) / (B / B0)``; it is above 1 for batches below the base batch.

    Reference: Qiao et al. 2021 (Pollux), section 3.1, https://arxiv.org/abs/2008.12260

    >>> efficiency(256, base_batch=64, noise_scale=128)
    0.5
    """
    _positive("batch", batch)
    _positive("base_batch", base_batch)
    if not noise_scale >= 0:
        raise ConfigError(
            f"noise_scale is {noise_scale}; expected samples, 0 or more. Take it from Moments.noise_scale."
        )
    if math.isinf(noise_scale):
        return 1.0
    return ((noise_scale + base_batch) / (noise_scale + batch)) ** power


def _positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ConfigError(
            f"{name} is {value}; expected a finite number above 0. Count it in samples of the whole step."
        )
