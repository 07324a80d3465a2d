"""When gradients are measured, and how those of a single micro-batch are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from swell.core.counts import whole_number
from swell.core.moment_average import WINDOW
from swell.errors import ConfigError

_MEASURED, _SPLIT = 4, 8  # of so many steps one at most is measured, or split for it, once the run is under way


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """How often gradients are measured, and how soon the figures are needed.

    Smoothing is over samples, so thinning changes the variance of the estimates and not their meaning.
    """

    # Measure every so many steps, once the first ``warm_up`` are done; more often above the base batch, and while a
    # policy waits for figures that are sure.
    every: int = 16
    warm_up: int = 100  # steps at the start that are all measured, so that estimates are soon sure
    # One replica with one micro-batch: "split" a step in two now and then, or take the "differences" of two consecutive
    # steps, which splits none but is biased and keeps a copy of the gradient.
    alone: Literal["split", "differences"] = "split"
    # Split every so many steps in the long run, more often at first, above the base batch, and while a policy waits for
    # figures that are sure; None for never.
    split_every: int | None = 256
    window: float | None = None  # base batches to average over; None for 1,000, or a twelfth of a shorter run
    exact: bool = False  # read the figures in the step itself, even if that means waiting for the device

    def __post_init__(self) -> None:
        whole_number(self.every, name="every")
        whole_number(self.warm_up, name="warm_up", at_least=0)
        if self.alone not in ("split", "differences"):
            raise ConfigError(f"alone={self.alone!r} is not known; expected 'split' or 'differences'.")
        if self.split_every is not None:
            whole_number(self.split_every, name="split_every")
        if self.window is not None and not 0 < self.window < math.inf:
            raise ConfigError(f"window={self.window!r}: expected how many base batches to average over, such as 1000.")

    def measures(self, step: int, scale: float = 1.0, window: float = WINDOW, *, awaited: bool = False) -> bool:
        """Whether the gradients of a step, ``scale`` base batches large, are measured if they can be.

        All of the first ``warm_up``, then every so many. Above the base batch the learning rate hangs on them: the
        ``window`` of base batches that figures are averaged over then holds 16, or one in 4. So many are measured too
        while sure figures are ``awaited``.

        >>> [step for step in range(98, 140) if Statistics().measures(step)]
        [98, 99, 112, 128]
        >>> [step for step in range(100, 120) if Statistics().measures(step, scale=12)]
        [100, 105, 110, 115]
        """
        apart = self.every if scale <= 1 else min(self.every, max(_MEASURED, round(window / 16 / scale)))
        if awaited:
            apart = min(apart, _MEASURED)
        return step < self.warm_up or step % apart == 0

    def splits(self, step: int, scale: float = 1.0, window: float = WINDOW, *, awaited: bool = False) -> bool:
        """Whether a step of a single micro-batch, ``scale`` base batches large, is split in two to be measured.

        At the base batch nothing hangs on it: every other step at first, then ever more seldom, up to ``split_every``.
        Above it the learning rate does: the ``window`` of base batches that figures are averaged over then holds 12 of
        them, or one in 8. One in 8 is split too while sure figures are ``awaited``.

        >>> [step for step in range(400) if Statistics().splits(step)][-8:]
        [240, 256, 272, 288, 304, 320, 352, 384]
        >>> [step for step in range(440, 480) if Statistics().splits(step, scale=12)]
        [440, 448, 456, 464, 472]
        """
        if self.split_every is None or self.alone != "split":
            return False
        apart = min(2, self.split_every)
        while apart * 20 <= step and apart * 2 <= self.split_every:
            apart *= 2
        if scale > 1:
            apart = min(apart, max(_SPLIT, round(window / 12 / scale)))
        if awaited:
            apart = min(apart, _SPLIT)
        return step % apart == 0

    @property
    def half_of(self) -> Callable[[int], int] | None:
        """Which half of a pair a step of a single micro-batch is, 1 or 2, or 0 for none; None where none is compared.

        Pairs take the place of measured steps: one after the other in the warm-up, then one every so many steps.

        >>> pairs = Statistics(alone="differences", every=16).half_of
        >>> [(step, pairs(step)) for step in range(98, 130) if pairs(step)]
        [(98, 1), (99, 2), (112, 1), (113, 2), (128, 1), (129, 2)]
        """
        return self._half if self.alone == "differences" else None

    def _half(self, step: int) -> int:
        place = step % (2 if step < self.warm_up else max(2, self.every))
        return place + 1 if place < 2 else 0


def as_statistics(given: bool | int | Statistics) -> Statistics | None:
    """``True`` is the default, a number measures every so many steps, ``False`` none."""
    if given is True:
        return Statistics()
    if given is False:
        return None
    if isinstance(given, Statistics):
        return given
    return Statistics(every=whole_number(given, name="statistics"))
