"""Signal and noise smoothed over samples, with a confidence interval for their ratio."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from swell.core.moments import estimate
from swell.core.student_t import student_t
from swell.core.types import Moments, NoiseEstimate
from swell.errors import CheckpointError, ConfigError

_TOO_LARGE = 1e150  # squares of larger figures overflow
WINDOW = 1000.0  # base batches; AdaScale's and AdaptDL's choice
RECENT = 1 / 3  # share of the samples so far to average over at most
_PARTS, _SHORTEST = 12, 50.0  # the window is at most one of 12 parts of a whole run, and at least 50 base batches


def window_of(total_samples: float | None, *, base_batch: int) -> float:
    """How many base batches to average over in a run of ``total_samples`` (None if unknown).

    1,000, or a twelfth of a shorter run, because noise grows by orders of magnitude over a run, and an average over a
    large part of it would always be late.

    >>> window_of(None, base_batch=128), window_of(128 * 6000, base_batch=128)
    (1000.0, 500.0)
    """
    if total_samples is None:
        return WINDOW
    return min(WINDOW, max(_SHORTEST, total_samples / base_batch / _PARTS))


class MomentAverage:
    r"""Running signal and noise of each parameter group and of the whole gradient.

    An observation of ``B`` samples has weight :math:`1 - \theta^B`. Older ones fade by :math:`\theta` per sample,
    :math:`\theta = e^{-1/(\text{window} \cdot B_0)}`, and faster early in a run, by ``share``. Division by the sum of
    weights corrects the start, when the window holds everything. The whole gradient is the sum over groups. Signal and
    noise are smoothed apart, and only smoothed values are divided. Noise is per sample, so a change of batch needs no
    rescaling.

    Use another instance for gradients in another metric (Adam's). Observations that are not finite are dropped and
    counted; their samples still make the older ones fade.

    Args:
        base_batch: ``B0`` in samples.
        window: how far back it remembers, in base batches of samples; may be changed at any time, like ``share``.
        share: the part of all samples so far that it remembers at most. At the start of a run the signal falls by
            orders of magnitude within a few steps, and would dominate the average for a whole window. By default the
            start counts like the rest; training runs use ``RECENT``.

    References: Johnson et al. 2020 (AdaScale), section 3.4, https://arxiv.org/abs/2007.05105 (the window);
    McCandlish et al. 2018, appendix A.1, https://arxiv.org/abs/1812.06162 (ratio of averages, not average of ratios).

    >>> average = MomentAverage(base_batch=8)
    >>> average.update([(5.0, 2.0)], count=4, batch=8)
    >>> average.update([(6.0, 3.0)], count=4, batch=8)
    >>> average.estimate().total
    Moments(signal=1.50..., noise=8.0)
    """

    def __init__(self, *, base_batch: int, window: float = WINDOW, share: float = math.inf) -> None:
        if not 0 < base_batch < math.inf:
            raise ConfigError(
                f"base_batch is {base_batch}; expected a finite number above 0. Give samples per base step."
            )
        self._base_batch = base_batch
        self.window = window
        self.share = share
        self._dropped = 0
        self.reset()

    @property
    def window(self) -> float:
        """How far back it remembers, in base batches."""
        return self._window

    @window.setter
    def window(self, window: float) -> None:
        if not 0 < window < math.inf:
            raise ConfigError(f"window is {window}; expected a finite number above 0. Give base batches, such as 1000.")
        self._window = float(window)
        self._memory = self._window * self._base_batch  # samples after which an observation's weight is down to 1/e
        self._latest: NoiseEstimate | None = None

    @property
    def share(self) -> float:
        """The part of all samples so far that it remembers at most."""
        return self._share

    @share.setter
    def share(self, share: float) -> None:
        if not share > 0:
            raise ConfigError(
                f"share is {share}; expected a number above 0. Give a part of all samples, such as 1 / 3."
            )
        self._share = float(share)
        self._latest = None

    def reset(self) -> None:
        """Forget every observation, for example when the parameter groups change; ``dropped`` is kept."""
        self._latest = None  # the estimate, if it was asked for since the latest change
        self._observations = 0
        self._age = 0.0  # samples since the start, measured or not
        self._pending = 0.0  # samples of dropped observations, not yet faded for
        self._weight = 0.0  # sum of weights
        self._means: list[list[float]] = []  # signal and noise of each group, by weight
        # Of the whole gradient, by squared weight, for the variance of a weighted mean.
        self._square_weight = 0.0
        self._square_mean = [0.0, 0.0]
        self._scatter = [0.0, 0.0, 0.0]  # signal, noise, and their product; about _square_mean

    @property
    def observations(self) -> int:
        """Steps that were measured and used."""
        return self._observations

    @property
    def dropped(self) -> int:
        """Observations that were not finite."""
        return self._dropped

    def update(
        self,
        groups: Sequence[tuple[float, float]],
        *,
        count: int,
        batch: float,
        samples_between: float | None = None,
    ) -> None:
        """Add one step's squared norms: ``(A, N)`` of each parameter group, the arguments of :func:`estimate`.

        ``samples_between`` counts the samples since the last update, this step's included. It is the batch itself if
        every step is measured, and more if only every k-th is.
        """
        moments = [estimate(small, big, count=count, batch=batch) for small, big in groups]
        self.update_moments(moments, batch=batch, samples_between=samples_between)

    def update_moments(self, groups: Sequence[Moments], *, batch: float, samples_between: float | None = None) -> None:
        """Add one observation of the signal and noise of each parameter group."""
        passed = batch if samples_between is None else samples_between
        if not 0 < batch <= passed < math.inf:
            raise ConfigError(
                f"batch is {batch} and samples_between is {passed}; expected a batch above 0 that is part of "
                "samples_between. Count the measured step itself in samples_between."
            )
        if not groups or (self._means and len(groups) != len(self._means)):
            raise ConfigError(
                f"groups has {len(groups)} entries; expected {len(self._means) or 'at least 1'}. Give one entry for "
                "each parameter group, in the same order every time, and call reset() when the groups change."
            )
        total = [sum(m.signal for m in groups), sum(m.noise for m in groups)]
        if not all(abs(x) < _TOO_LARGE for x in (*total, *(m.signal for m in groups), *(m.noise for m in groups))):
            self._dropped += 1
            self._pending += passed
            return
        if not self._means:
            self._means = [[0.0, 0.0] for _ in groups]
        passed += self._pending
        self._age += passed
        keep = math.exp(-passed / min(self._memory, self._share * self._age))
        weight = -math.expm1(-batch / self._memory)
        self._pending = 0.0
        self._latest = None
        self._observations += 1
        self._weight = keep * self._weight + weight
        step = weight / self._weight
        for mean, new in zip(self._means, groups, strict=True):
            mean[0] += step * (new.signal - mean[0])
            mean[1] += step * (new.noise - mean[1])
        self._spread(total, keep=keep**2, weight=weight**2)

    def _spread(self, total: Sequence[float], *, keep: float, weight: float) -> None:
        """Welford's update of the squared-weight mean and scatter, which subtracts no large sums."""
        before = keep * self._square_weight
        self._square_weight = before + weight
        signal, noise = (x - mean for x, mean in zip(total, self._square_mean, strict=True))
        share = weight / self._square_weight
        self._square_mean = [self._square_mean[0] + share * signal, self._square_mean[1] + share * noise]
        products = (signal * signal, noise * noise, signal * noise)
        self._scatter = [keep * s + before * share * p for s, p in zip(self._scatter, products, strict=True)]

    def estimate(self) -> NoiseEstimate | None:
        r"""Smoothed moments with a 95 % interval of the noise scale; None before the first observation.

        The variance of the weighted means is :math:`\sum w_t^2 (x_t - \bar x)^2 / (\sum w_t)^2`, whatever each step's
        own variance (a larger batch has a smaller one), corrected for the effective number of observations
        :math:`n = (\sum w_t)^2 / \sum w_t^2`. The ratio's interval is :func:`ratio_interval` with Student's t of
        ``n - 1`` degrees. It assumes independent observations. It is an interval of the window's average: it gets wider
        if the true moments move within the window, and does not say where they move next.

        Moments are not clamped, because a sum of clamped ones is biased. A signal that is not positive has an infinite
        noise scale.

        The estimate is computed once after each change, so asking again costs nothing.
        """
        if self._latest is None and self._observations:
            groups = tuple(Moments(signal=signal, noise=noise) for signal, noise in self._means)
            total = Moments(signal=sum(m.signal for m in groups), noise=sum(m.noise for m in groups))
            self._latest = NoiseEstimate(
                total=total, groups=groups, interval=self._interval(total), observations=self._observations
            )
        return self._latest

    def _interval(self, total: Moments) -> tuple[float, float]:
        effective = self._weight**2 / self._square_weight
        degrees = effective - 1
        if degrees < 0.5:  # one observation, or one that dominates all others: the spread is unknown
            return (0.0, math.inf)
        signal, noise = self._square_mean[0] - total.signal, self._square_mean[1] - total.noise
        offsets = (signal * signal, noise * noise, signal * noise)
        correction = effective / degrees / self._weight**2
        variances = [correction * (s + self._square_weight * o) for s, o in zip(self._scatter, offsets, strict=True)]
        return ratio_interval(total.noise, total.signal, variances=variances, quantile=student_t(degrees))

    def state_dict(self) -> dict[str, Any]:
        """Everything measured so far, as plain numbers and lists, without the settings."""
        return {
            "observations": self._observations,
            "dropped": self._dropped,
            "age": self._age,
            "pending": self._pending,
            "weight": self._weight,
            "means": [list(mean) for mean in self._means],
            "square_weight": self._square_weight,
            "square_mean": list(self._square_mean),
            "scatter": list(self._scatter),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved ``state_dict``, on any number of replicas."""
        try:
            loaded = {
                "_latest": None,
                "_observations": int(state["observations"]),
                "_dropped": int(state["dropped"]),
                "_age": float(state["age"]),
                "_pending": float(state["pending"]),
                "_weight": float(state["weight"]),
                "_means": [_floats(mean, 2) for mean in state["means"]],
                "_square_weight": float(state["square_weight"]),
                "_square_mean": _floats(state["square_mean"], 2),
                "_scatter": _floats(state["scatter"], 3),
            }
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the state is not a moment average's ({type(error).__name__}: {error}); expected what state_dict() "
                "returned. Load the matching part of the checkpoint, or start again with reset()."
            ) from error
        self.__dict__.update(loaded)  # all or nothing


def ratio_interval(
    numerator: float, denominator: float, *, variances: Sequence[float], quantile: float
) -> tuple[float, float]:
    r"""Fieller's interval of a ratio that cannot be negative, from two estimates and their (co)variances.

    It contains every :math:`\rho \ge 0` that the estimates do not contradict:

    .. math:: (n - \rho s)^2 \le t^2 (v_{nn} - 2 \rho v_{sn} + \rho^2 v_{ss})

    ``variances`` are those of the denominator ``s``, of the numerator ``n``, and their covariance; ``quantile`` is t.
    If the denominator is not significantly positive, the upper end is infinite. If it is significantly negative, it
    contradicts every such ratio, and the interval is ``(0, inf)``.

    Reference: Fieller 1954, Some problems in interval estimation, J. R. Stat. Soc. B 16(2).

    >>> ratio_interval(8.0, 2.0, variances=(0.01, 0.04, 0.0), quantile=2.0)
    (3.589..., 4.491...)
    >>> ratio_interval(8.0, 0.1, variances=(0.01, 0.04, 0.0), quantile=2.0)
    (26.6..., inf)
    """
    unit_s = max(abs(denominator), math.sqrt(variances[0])) or 1.0  # nothing over- or underflows in these units
    unit_n = max(abs(numerator), math.sqrt(variances[1])) or 1.0
    s, n, t2 = denominator / unit_s, numerator / unit_n, quantile * quantile
    v_ss, v_nn = variances[0] / unit_s / unit_s, variances[1] / unit_n / unit_n
    v_sn = variances[2] / unit_s / unit_n
    a, b, c = s * s - t2 * v_ss, s * n - t2 * v_sn, n * n - t2 * v_nn  # a rho^2 - 2 b rho + c <= 0
    if a > 0 and s < 0:
        return (0.0, math.inf)
    larger = b + math.sqrt(max(b * b - a * c, 0.0))
    low = c / larger * (unit_n / unit_s) if c > 0 and n > 0 and larger > 0 else 0.0
    if a <= 0:
        return (low, math.inf)
    return (low, larger / a * (unit_n / unit_s) if larger > 0 else 0.0)  # 0 times units that overflow is no number


def _floats(values: Sequence[Any], length: int) -> list[float]:
    numbers = [float(value) for value in values]
    if len(numbers) != length:
        raise ValueError(f"{len(numbers)} numbers instead of {length}")
    return numbers
