"""Which steps have their gradients measured, and how those of a single micro-batch are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from swell.core.counts import whole_number
from swell.core.moment_average import WINDOW
from swell.errors import ConfigError

_SHARE, _FOLLOWED_SHARE = 0.02, 0.1  # of the time that measuring may cost, and where it decides the batch
# After the start, at most one step in 4 is measured. At most one in 8 is split for it while the noise is awaited, then
# one in 20: a split step takes about twice the time, and an estimate that is sure needs little more to stay so.
_MEASURED, _SPLIT, _SPLIT_SURE = 4, 8, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """How often gradients are measured at most, what that may cost, and how soon the figures are needed.

    Smoothing is over samples, so measuring fewer steps changes the variance of the estimates and not their meaning.
    """

    # The share of the run's time that measuring may cost; where the rates below would cost more, fewer steps are
    # measured. "auto" is 0.02, and 0.1 under a policy that chooses the batch by the noise, where knowing it saves more
    # than that. The first burst may cost 10 steps' time more where something depends on the figures, otherwise 2. None
    # for no bound, nor is there one where every step is asked for (``every=1``; ``split_every=1`` for single
    # micro-batches).
    budget: float | Literal["auto"] | None = "auto"
    # Measure one step in ``every`` after the first ``warm_up``; more above the base batch, and while a policy waits for
    # a sure estimate.
    every: int = 16
    warm_up: int = 100  # steps at the start that are all measured, so that estimates are soon sure
    # One replica with one micro-batch: "split" a step in two now and then, or take the "differences" of two consecutive
    # steps, which splits none but is biased and keeps a copy of the gradient.
    alone: Literal["split", "differences"] = "split"
    # Split one step in ``split_every`` in the long run; more at the start, above the base batch, and while a policy
    # waits for a sure estimate. None for never.
    split_every: int | None = 256
    window: float | None = None  # base batches to average over; None for 1,000, or a twelfth of a shorter run
    exact: bool = False  # read the figures in the step itself, even if it must wait for the device
    # Measure nothing where nobody uses the figures: at a fixed batch that is the base batch, under a rule that looks at
    # no noise there. Then no step is split, and at the base batch a job computes what a plain loop does, bit for bit.
    on_demand: bool = False

    def __post_init__(self) -> None:
        share = 1 if self.budget in (None, "auto") else self.budget
        if isinstance(share, str) or not 0 < share <= 1:
            raise ConfigError(
                f"budget is {self.budget!r}; expected a share of the time above 0, at most 1. Leave it out for 0.02 "
                "(0.1 under a policy that follows the noise), or pass None for no bound."
            )
        whole_number(self.every, name="every")
        whole_number(self.warm_up, name="warm_up", at_least=0)
        if self.alone not in ("split", "differences"):
            raise ConfigError(f"alone is {self.alone!r}; expected 'split' or 'differences'. Leave it out to split.")
        if self.split_every is not None:
            whole_number(self.split_every, name="split_every")
        if self.window is not None and not 0 < self.window < math.inf:
            raise ConfigError(
                f"window is {self.window!r}; expected a number of base batches above 0. Leave it out, or pass 1000."
            )

    def measures(self, step: int, scale: float = 1.0, window: float = WINDOW, *, awaited: bool = False) -> bool:
        """Whether the gradients of a step, ``scale`` base batches large, are measured if they can be.

        All of the first ``warm_up`` are, then one in ``every``. Above the base batch the learning rate depends on them:
        then 16 are measured in the ``window`` of base batches that figures are averaged over, but at most one in 4. One
        in 4 is measured too while a sure estimate is ``awaited``.

        >>> [step for step in range(98, 140) if Statistics().measures(step)]
        [98, 99, 112, 128]
        >>> [step for step in range(100, 120) if Statistics().measures(step, scale=12)]
        [100, 105, 110, 115]
        """
        interval = self.every if scale <= 1 else min(self.every, max(_MEASURED, round(window / 16 / scale)))
        if awaited:
            interval = min(interval, _MEASURED)
        return step < self.warm_up or step % interval == 0

    def splits(self, step: int, scale: float = 1.0, window: float = WINDOW, *, awaited: bool = False) -> bool:
        """Whether a step of a single micro-batch, ``scale`` base batches large, is split in two to be measured.

        At the base batch nothing depends on it: every other step at first, then fewer, down to one in ``split_every``.
        Above it the learning rate does: then 12 are split in the ``window`` of base batches that figures are averaged
        over, but at most one in 20. One in 8 is split while a sure estimate is ``awaited``.

        >>> [step for step in range(400) if Statistics().splits(step)][-8:]
        [240, 256, 272, 288, 304, 320, 352, 384]
        >>> [step for step in range(440, 520) if Statistics().splits(step, scale=12)]
        [440, 460, 480, 500]
        """
        if self.split_every is None or self.alone != "split":
            return False
        interval = min(2, self.split_every)
        while interval * 20 <= step and interval * 2 <= self.split_every:
            interval *= 2
        if scale > 1:
            interval = min(interval, max(_SPLIT_SURE, round(window / 12 / scale)))
        if awaited:
            interval = min(interval, _SPLIT)
        return step % interval == 0

    def share(self, *, split: bool, followed: bool = False) -> float | None:
        """The share of the time that measuring may cost; None where it has no bound. ``split`` for split steps.

        ``followed`` if a policy chooses the batch by the figures.

        >>> Statistics().share(split=True), Statistics().share(split=True, followed=True)
        (0.02, 0.1)
        >>> Statistics(split_every=1).share(split=True) is None
        True
        """
        if (self.split_every if split else self.every) == 1:
            return None
        if self.budget == "auto":
            return _FOLLOWED_SHARE if followed else _SHARE
        return self.budget

    @property
    def half_of(self) -> Callable[[int], int] | None:
        """A function that says which half of a pair a step is, 1 or 2, or 0 for none; None where none is compared.

        Pairs of single micro-batches replace measured steps: back to back in the warm-up, then one every ``every``.

        >>> pairs = Statistics(alone="differences", every=16).half_of
        >>> [(step, pairs(step)) for step in range(98, 130) if pairs(step)]
        [(98, 1), (99, 2), (112, 1), (113, 2), (128, 1), (129, 2)]
        """
        return self._half if self.alone == "differences" else None

    def _half(self, step: int) -> int:
        position = step % (2 if step < self.warm_up else max(2, self.every))
        return position + 1 if position < 2 else 0


def as_statistics(value: bool | int | str | Statistics) -> Statistics | None:
    """``"auto"`` measures where somebody uses it, ``True`` always, a number N one step in N, ``False`` none."""
    if value == "auto":
        return Statistics(on_demand=True)
    if value is True:
        return Statistics()
    if value is False:
        return None
    if isinstance(value, Statistics):
        return value
    if isinstance(value, str):
        raise ConfigError(
            f"statistics is {value!r}; expected 'auto', True, False, a number N for one step in N, or a "
            "swell.Statistics. Leave it out for 'auto'."
        )
    return Statistics(every=whole_number(value, name="statistics"), budget=None)
