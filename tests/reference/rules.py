"""Every rule's formulas as the papers print them, without guards, and Adam with its product of betas written out."""

from __future__ import annotations

import math
from collections.abc import Sequence


def adascale_gain(scale: float, *, signal: float, noise: float, base_batch: float) -> float:
    sigma2, mu2 = noise / base_batch, signal
    return (sigma2 + mu2) / (sigma2 / scale + mu2)


def mean_gain_of_two_batches(scale: float, *, signal: float, noise: float, base_batch: float) -> float:
    """AdaScale's gain by its meaning: expected squared norm at the base batch over that at the large one."""
    return (signal + noise / base_batch) / (signal + noise / (base_batch * scale))


def legw_lr(scale: float, *, warmup_samples: float, reached: float) -> float:
    """The learning rate of the whole schedule, base warm-up included, in units of the base learning rate."""
    return math.sqrt(scale) * min(1.0, reached / (scale * warmup_samples))


class SlowAdam:
    """Adam of one number, whose betas may change at every step: the bias correction keeps the products explicitly."""

    def __init__(self) -> None:
        self.first = self.second = 0.0
        self.first_product = self.second_product = 1.0

    def step(self, gradient: float, *, betas: tuple[float, float], lr: float, eps: float) -> float:
        """The change of the parameter."""
        beta1, beta2 = betas
        self.first = beta1 * self.first + (1 - beta1) * gradient
        self.second = beta2 * self.second + (1 - beta2) * gradient**2
        self.first_product *= beta1
        self.second_product *= beta2
        mean = self.first / (1 - self.first_product)
        spread = self.second / (1 - self.second_product)
        return -lr * mean / (math.sqrt(spread) + eps)


class CountingAdam:
    """Adam of one number as torch writes it: it corrects by the current betas to the power of a step it is shown."""

    def __init__(self) -> None:
        self.first = self.second = 0.0

    def step(self, gradient: float, *, betas: tuple[float, float], lr: float, eps: float, shown: float) -> float:
        """The change of the parameter; ``shown`` is the step before it is counted up."""
        beta1, beta2 = betas
        step = shown + 1
        self.first = beta1 * self.first + (1 - beta1) * gradient
        self.second = beta2 * self.second + (1 - beta2) * gradient**2
        mean = self.first / (1 - beta1**step)
        spread = self.second / (1 - beta2**step)
        return -lr * mean / (math.sqrt(spread) + eps)


def left_after(rates: Sequence[float]) -> float:
    """What is left of a weight after decoupled decay at each of these lr * decay."""
    left = 1.0
    for rate in rates:
        left *= 1 - rate
    return left
