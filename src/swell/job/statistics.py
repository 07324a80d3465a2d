"""When gradients are measured: every step, thinned, or never."""

from __future__ import annotations

from dataclasses import dataclass

from swell.core.counts import whole_number

WARM_UP_STEPS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """How often gradients are measured, and how soon the figures are needed.

    Smoothing is over samples, so thinning changes the variance of the estimates and not their meaning.
    """

    every: int = 4  # measure every so many steps, once the first hundred are done
    # one replica with one micro-batch: split every so many steps in two, more often at first; None for never
    split_every: int | None = 160
    exact: bool = False  # read the figures in the step itself, even if that means waiting for the device

    def __post_init__(self) -> None:
        whole_number(self.every, name="every")
        if self.split_every is not None:
            whole_number(self.split_every, name="split_every")

    def measures(self, step: int) -> bool:
        """Whether the gradients of a step are measured: all of the first hundred, then every so many.

        >>> [step for step in range(98, 110) if Statistics(every=4).measures(step)]
        [98, 99, 100, 104, 108]
        """
        return step < WARM_UP_STEPS or step % self.every == 0

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
        return step % apart == 0 and self.measures(step)


def as_statistics(given: bool | int | Statistics) -> Statistics | None:
    """``True`` is the default, a number measures every so many steps, ``False`` none."""
    if given is True:
        return Statistics()
    if given is False:
        return None
    if isinstance(given, Statistics):
        return given
    return Statistics(every=whole_number(given, name="statistics"))
