"""A small batch for most of the run, and a large one for the rest."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from swell.core.counts import whole_number
from swell.core.types import Observation
from swell.errors import ConfigError
from swell.policies.arguments import assign, number
from swell.policies.position import position


@dataclass(frozen=True, slots=True)
class LateSwitch:
    """The batch ``base`` up to the part ``at`` of the run, then ``to``.

    For hard tasks most of the progress needs many steps, and the noise of small batches is soon forgotten once the
    batch is large: the loss catches up with that of a run at the large batch throughout, which took more samples to get
    there. The paper keeps the learning rate (``rule="constant"``) and goes through the data a fixed number of times
    (``job.epochs``), so that the switch lowers the noise as a decay of the rate does.

    The run must have a known length.

    Reference: Wang et al. 2026, https://arxiv.org/abs/2602.14208

    >>> from swell.policies import LateSwitch
    >>> LateSwitch(64, to=512).at
    0.7
    """

    base: int
    _: KW_ONLY
    to: int
    at: float = 0.7

    def __post_init__(self) -> None:
        assign(self, base=whole_number(self.base, name="base"), to=whole_number(self.to, name="to"))
        assign(self, at=number(self.at, name="at", at_least=0, example=0.7))
        if self.at > 1:
            raise ConfigError(f"at is {self.at:g}; expected a part of the run, 0 to 1. Give 0.7 for its last 30 %.")

    def batch(self, seen: Observation) -> int:
        return seen.within_epoch(self.to) if position(seen, "fraction") >= self.at - 1e-9 else self.base
