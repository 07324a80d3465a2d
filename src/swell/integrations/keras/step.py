"""One step of a Keras run before it is computed: its samples, its passes, its factors."""

from __future__ import annotations

from dataclasses import dataclass

from swell.core.types import Factors, Layout, Observation, Plan
from swell.integrations.keras.pass_layout import Pass


@dataclass(frozen=True, kw_only=True)
class Step:
    """Everything about one step before it is computed."""

    index: int
    epoch: int
    start: int  # positions in the epoch's order
    stop: int
    batch: int  # the policy's choice; whole even if the epoch's end cuts the step
    layout: Layout | None  # the policy's choice, if it lays steps out
    plan: Plan
    passes: tuple[Pass, ...]  # of this process
    num_passes: int  # of all processes
    measured: bool
    split: bool  # cut in two only to be measured
    preconditioned: bool  # whether it is measured in the optimizer's metric too
    factors: Factors
    gain: float
    power_sum: float | None  # of Adam's betas up to this step; None while no rule has moved them
    effective_step: float  # the step that Adam's bias correction is due for
    seen: Observation | None = None  # what the policy saw, if it chose another batch or micro-batch than before

    @property
    def count(self) -> int:
        """Samples of the step."""
        return self.stop - self.start
