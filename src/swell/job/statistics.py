"""When gradients are measured: every step, thinned, or never."""

from __future__ import annotations

from dataclasses import dataclass

from swell.core.counts import whole_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """How often gradients are measured, and how soon the figures are needed.

    Smoothing is over samples, so thinning changes the variance of the estimates and not their meaning.
    """

    every: int = 1  # measure every so many steps
    # one replica with one micro-batch: split every so many steps in two, more often at first; None for never
    split_every: int | None = 160
    exact: bool = False  # read the figures in the step itself, even if that means waiting for the device

    def __post_init__(self) -> None:
        whole_number(self.every, name="every")
        if self.split_every is not None:
            whole_number(self.split_every, name="split_every")

    def splits(self, step: int) -> bool:
        """Whether a step of a single micro-batch is split in two: every 10th at first, then ever more seldom.

        >>> [step for step in range(500) if Statistics().splits(step)][-8:]
        [300, 320, 340, 360, 380, 400, 440, 480]
        """
        if self.split_every is None:
            return False
        apart = min(10, self.split_every)
        while apart * 20 <= step and apart * 2 <= self.split_every:
            apart *= 2
        return step % apart == 0


def as_statistics(given: bool | int | Statistics) -> Statistics | None:
    """``True`` measures every step, a number every so many, ``False`` never."""
    if given is True:
        return Statistics()
    if given is False:
        return None
    if isinstance(given, Statistics):
        return given
    return Statistics(every=whole_number(given, name="statistics"))
