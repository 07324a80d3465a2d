"""How far a Keras run has come: samples, steps and progress, once of what was trained and once of what was planned.

``fit`` reads data ahead of the step it trains, so a step is planned before the one in front of it is trained.
"""

from __future__ import annotations

from typing import Any

from swell.core.ledger import Ledger
from swell.core.protocols import Policy
from swell.core.types import NoiseEstimate, Observation
from swell.integrations.keras.step import Step
from swell.loop.pace import Pace


class RunCounts:
    """A ledger, a pace and the sum of Adam's beta powers, which move together with every step."""

    def __init__(self, policy: Policy, *, length: int, seed: int, micro: int | None, drop_last: bool) -> None:
        self.ledger = Ledger(length, seed=seed, drop_last=drop_last)
        self.pace = Pace(policy, micro=micro, constant_micro=False, capacity=None, fill=True)
        self.power_sum: float | None = None  # None while no rule has moved the betas

    def start_from(self, other: RunCounts) -> None:
        """Take over another's counts; step times are shared with it."""
        self.ledger.load_state_dict(other.ledger.state_dict())
        self.pace = other.pace.copy()
        self.power_sum = other.power_sum

    def observe(
        self, *, processes: int, noise: NoiseEstimate | None, total_samples: int | None, worth_power: float
    ) -> Observation:
        """All that the policy may look at before the next step."""
        ledger = self.ledger
        return self.pace.observe(
            replicas=processes,
            nodes=1,
            noise=noise,
            samples=ledger.samples,
            epoch=ledger.epoch,
            epoch_samples=ledger.cursor,
            epoch_size=ledger.length,
            total_samples=total_samples,
            worth_power=worth_power,
        )

    def advance(self, step: Step) -> None:
        """Count a step."""
        ledger = self.ledger
        if step.epoch != ledger.epoch:
            ledger.next_epoch()
        span = ledger.next_span(step.count)
        assert span == (step.start, step.stop), f"step {step.index} is {step.start} to {step.stop}, but {span} is due"
        samples = ledger.samples
        ledger.commit(step.stop)
        self.pace.layout = step.layout
        self.pace.committed(
            step.plan, batch=step.batch, samples=samples, gain=step.gain, nodes=1, as_chosen=not step.split
        )
        self.power_sum = step.power_sum

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, the same on every process."""
        return {"ledger": self.ledger.state_dict(), "pace": self.pace.state_dict(), "power_sum": self.power_sum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.ledger.load_state_dict(state["ledger"])
        self.pace.load_state_dict(state["pace"])
        self.power_sum = None if state["power_sum"] is None else float(state["power_sum"])
