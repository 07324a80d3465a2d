"""Which step comes next: its batch by the policy, its passes by the pace, its factors by the rule."""

from __future__ import annotations

from swell.core.moment_average import window_of
from swell.core.protocols import FinitePolicy, Policy, Rule
from swell.core.types import NoiseEstimate, Observation, Plan, ScaleState
from swell.errors import DataError
from swell.integrations.keras.device_grid import DeviceGrid
from swell.integrations.keras.noise_meter import NoiseMeter
from swell.integrations.keras.pass_layout import Pass, num_passes, passes_of
from swell.integrations.keras.run_counts import RunCounts
from swell.integrations.keras.step import Step
from swell.loop.statistics import Statistics
from swell.policies import is_finished
from swell.policies.decision import awaiting
from swell.rules import effective_step
from swell.rules.metric import WARM_UP_STEPS, needs_preconditioned
from swell.rules.worth import worth_power


class StepPlanner:
    """Plans the step after any counts, by the policy, the rule, the statistics and the devices of now."""

    def __init__(self, policy: Policy, rule: Rule, *, statistics: Statistics | None, meter: NoiseMeter) -> None:
        self._policy, self._statistics, self._meter = policy, statistics, meter
        self._awaits = awaiting(policy)
        self._can_finish = isinstance(policy, FinitePolicy)  # asked once, because this check is slow
        self._cut: tuple[Plan, DeviceGrid, tuple[Pass, ...], int] | None = None  # the latest plan and its passes
        self.grid = DeviceGrid()
        self.iterations = 0  # updates that the optimizer had made before the run's first step
        self.total_samples: int | None = None
        self.finished = False  # whether the policy has ended the run
        self.rule = rule

    @property
    def rule(self) -> Rule:
        """How the learning rate follows the batch."""
        return self._rule

    @rule.setter
    def rule(self, rule: Rule) -> None:
        self._rule, self._preconditioned, self._worth_power = rule, needs_preconditioned(rule), worth_power(rule)

    @property
    def noise(self) -> NoiseEstimate | None:
        """The gradient noise that the policy sees."""
        return self._meter.estimate(preconditioned=self._preconditioned)

    def expect(self, total_samples: int) -> None:
        """Set the length of the run; figures are averaged over a fitting part of it."""
        self.total_samples = total_samples
        chosen = None if self._statistics is None else self._statistics.window
        self._meter.window = window_of(total_samples, base_batch=self._policy.base) if chosen is None else chosen

    def next_step(self, counts: RunCounts, *, skip_rest: bool) -> Step | None:
        """The step after ``counts``, or None at the end of the epoch or of the run.

        With ``skip_rest`` an epoch of which only a dropped rest is left is passed over.
        """
        ledger, pace = counts.ledger, counts.pace
        while True:
            seen = counts.observe(
                processes=self.grid.processes,
                noise=self.noise,
                total_samples=self.total_samples,
                worth_power=self._worth_power,
            )
            self.finished = self._can_finish and is_finished(self._policy, seen)
            if self.finished:
                return None
            batch = pace.choose(seen)
            if batch > ledger.length:
                raise DataError(
                    f"the global batch is {batch}; expected at most {ledger.length}, the samples of an epoch. Lower "
                    f"the batch (or the policy's maximum) to {ledger.length} or less."
                )
            span = ledger.next_span(batch)
            if span is not None:
                return self._planned(counts, batch, span, seen)
            if not skip_rest:
                return None
            ledger.next_epoch()

    def _planned(self, counts: RunCounts, batch: int, span: tuple[int, int], seen: Observation) -> Step:
        pace, count = counts.pace, span[1] - span[0]
        plan, measured, split = self._lay_out(counts, batch, count, seen.noise)
        passes, number = self._passes(plan)
        moments, preconditioned = self._meter.moments()
        state = ScaleState(
            scale=counts.ledger.base_steps(*span, base=pace.base) * pace.part_followed(batch),
            base_batch=pace.base,
            moments=moments,
            preconditioned=preconditioned,
            progress=pace.progress,
            samples=counts.ledger.samples,
        )
        factors = self._rule.factors(state)
        updates = self.iterations + pace.step
        power_sum = _add_power(counts.power_sum, factors.beta_power, updates=updates)
        return Step(
            index=pace.step,
            epoch=counts.ledger.epoch,
            start=span[0],
            stop=span[1],
            batch=batch,
            layout=pace.layout,
            plan=plan,
            passes=passes,
            num_passes=number,
            measured=measured,
            split=split,
            preconditioned=self._preconditioned and updates >= WARM_UP_STEPS,
            factors=factors,
            gain=self._rule.gain(state),
            power_sum=power_sum,
            effective_step=float(updates + 1) if power_sum is None else effective_step(power_sum, factors.beta_power),
            seen=seen if pace.differs(batch, seen) else None,
        )

    def _lay_out(
        self, counts: RunCounts, batch: int, count: int, noise: NoiseEstimate | None
    ) -> tuple[Plan, bool, bool]:
        """The step's plan, whether it is measured, and whether it was split for that."""
        pace, grid, statistics = counts.pace, self.grid, self._statistics
        plan = pace.lay_out(batch, count, replicas=grid.processes, split=False)
        if statistics is None:
            return plan, False, False
        place = pace.step, batch / pace.base, self._meter.window
        awaited = self._awaits(noise)
        if self._passes(plan)[1] > 1:
            return plan, statistics.measures(*place, awaited=awaited), False
        # The rest of an epoch may be too small to be cut: batch normalisation refuses a single sample.
        split = count == batch and count >= 2 * grid.devices and statistics.splits(*place, awaited=awaited)
        return pace.lay_out(batch, count, replicas=grid.processes, split=split), split, split

    def _passes(self, plan: Plan) -> tuple[tuple[Pass, ...], int]:
        """This process's passes and the number of all; the plan is mostly the one of the step before."""
        grid = self.grid
        if self._cut is None or self._cut[0] is not plan or self._cut[1] != grid:
            mine = passes_of(plan.shares[grid.rank], devices=grid.devices)
            self._cut = plan, grid, mine, num_passes(plan, devices=grid.devices)
        return self._cut[2:]


def _add_power(power_sum: float | None, power: float, *, updates: int) -> float | None:
    """The sum of beta powers with one more; steps before the first that moved them count 1 each.

    >>> _add_power(None, 1.0, updates=7), _add_power(None, 4.0, updates=7), _add_power(11.0, 1.0, updates=8)
    (None, 11.0, 12.0)
    """
    if power_sum is None:
        return None if power == 1 else updates + power
    return power_sum + power
