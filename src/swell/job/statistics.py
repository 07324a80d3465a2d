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
    split_every: int = 10  # one replica with one micro-batch: split every so many steps in two to measure
    exact: bool = False  # read the figures in the step itself, even if that means waiting for the device

    def __post_init__(self) -> None:
        whole_number(self.every, name="every")
        whole_number(self.split_every, name="split_every")


def as_statistics(given: bool | int | Statistics) -> Statistics | None:
    """``True`` measures every step, a number every so many, ``False`` never."""
    if given is True:
        return Statistics()
    if given is False:
        return None
    if isinstance(given, Statistics):
        return given
    return Statistics(every=whole_number(given, name="statistics"))
