"""One step of a Keras run before it is computed: its samples, its passes, its factors."""

from __future__ import annotations

from dataclasses import dataclass

from swell.core.types import Factors, Observation, Plan
from swell.integrations.keras.passes import Pass


@dataclass(frozen=True, kw_only=True)
class Step:
    """Everything about one step before it is computed."""

    index: int
    epoch: int
    start: int  # positions in the epoch's order
    stop: int
    batch: int  # what the policy chose; whole even where the epoch's end cuts the step
    plan: Plan
    passes: tuple[Pass, ...]  # this process's own
    factors: Factors
    gain: float
    measured: bool
    preconditioned: bool
    effective_step: float
    micro: int  # the most samples one device computes at once, as it was chosen
    seen: Observation | None = None  # what the policy chose by, where it chose another batch than before
