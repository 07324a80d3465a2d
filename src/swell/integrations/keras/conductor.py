"""Which step comes next: its batch, its passes, its factors; decided ahead of training, by the same figures anywhere.

``fit`` may read data ahead of the step it trains, as it does by a pass on an accelerator with JAX. So step ``k`` is
decided when its first pass is read, from what was measured up to step ``k - 2`` and from positions, which are known in
advance. Nothing depends on how far ahead a backend happens to read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from swell.core.ledger import Ledger
from swell.core.moment_average import RECENT, MomentAverage, window_of
from swell.core.planning import plan, plan_remainder
from swell.core.profile import Profile
from swell.core.protocols import Policy, Rule
from swell.core.types import NoiseEstimate, Observation, Plan, ScaleState, StepTimes
from swell.errors import DataError, LoopError, PlanError
from swell.integrations.keras.passes import passes
from swell.integrations.keras.step import Step
from swell.policies import checked_batch, chosen_layout, is_finished
from swell.rules import effective_step
from swell.rules.metric import needs_preconditioned

LAG = 2  # steps between what was measured and the step decided by it
WARM_UP_STEPS = 5  # updates before which a second moment says too little; as in swell.gradients.preconditioner
SPLIT_EVERY = 10  # steps that are one pass: so seldom is one split in two, to measure


class Conductor:
    """Decides steps, hands them out in order, and learns from those that were committed."""

    def __init__(
        self,
        policy: Policy,
        rule: Rule,
        *,
        length: int,
        seed: int,
        micro: int | None = None,
        every: int | None = 1,
        drop_last: bool = False,
    ) -> None:
        self.policy, self.rule = policy, rule
        self.base = policy.base
        self.ledger = Ledger(length, seed=seed, drop_last=drop_last)  # what was trained
        self._ahead = Ledger(length, seed=seed, drop_last=drop_last)  # what was decided
        self._bound = micro  # what the user allows; a policy that lays steps out keeps to it
        self._micro = self.base if micro is None else micro
        self._every = every
        self.profile = Profile()
        self.noise_average = MomentAverage(base_batch=self.base, share=RECENT)
        self.metric_average = MomentAverage(base_batch=self.base, share=RECENT)
        self.step, self.progress = 0, 0.0  # committed
        self.batch, self.batch_since = self.base, 0
        self.micro: int | None = None  # of the last step
        self._trained_on: int | None = None  # replicas, before this process
        self.iterations = 0  # updates the optimizer had made before the first of these steps
        self.power_sum: float | None = None  # of Adam's betas; None while no rule moved them
        self.replicas, self.rank, self.devices = 1, 0, 1
        self.total_samples: int | None = None
        self.finished = False
        self._preconditioned = needs_preconditioned(rule)
        self._times: StepTimes | None = None
        self._measured_at = 0  # samples committed up to the last measured step, that one included
        self._waiting: deque[tuple[Step, int, Callable[[], tuple[list[float], list[float]]]]] = deque()
        self._pass_over = 0
        self.trains = False  # whether somebody is training now
        self.restart()

    def expect(self, total_samples: int) -> None:
        """The run will be so long: figures are averaged over a fitting part of it."""
        self.total_samples = total_samples
        window = window_of(total_samples, base_batch=self.base)
        self.noise_average.window = self.metric_average.window = window

    @property
    def noise(self) -> NoiseEstimate | None:
        """What is known of the gradient noise, in the metric the rule looks at."""
        metric = self.metric_average.estimate() if self._preconditioned else None
        return metric if metric is not None else self.noise_average.estimate()

    # Reading ahead

    def restart(self) -> int:
        """Begin to read at what is committed; returns a token. Readers that hold an older one come to their end."""
        self._pass_over += 1
        self._ahead.load_state_dict(self.ledger.state_dict())
        if self.ledger.remaining == 0:
            self._ahead.next_epoch()
        self._ahead_step, self._ahead_progress = self.step, self.progress
        self._ahead_batch, self._ahead_since = self.batch, self.batch_since
        self._ahead_micro = self.micro
        self._ahead_powers = self.power_sum
        self._fresh = True
        self._to_read: deque[Step] = deque()
        self._to_train: deque[Step] = deque()
        return self._pass_over

    def attach(self) -> int:
        """The token of a reader that begins now."""
        return self._pass_over if self.trains else self.restart()

    def step_to_read(self, token: int) -> Step | None:
        """The next step to read samples for; None at the end of the epoch, of the run, or for an older reader."""
        if token == self._pass_over and (self._to_read or self._decide_next()):
            return self._to_read.popleft()
        return None

    def step_to_train(self) -> Step | None:
        """The next step to train; decided now if it was not read yet. None at the end of the epoch or run."""
        if self._to_train or self._decide_next():
            return self._to_train.popleft()
        return None

    def unread(self, step: Step) -> bool:
        """Whether nobody has read the step's samples, though it is being trained."""
        return any(waiting.index == step.index for waiting in self._to_read)

    def _decide_next(self) -> bool:
        if self.step < self._ahead_step - LAG + 1:
            raise LoopError(
                f"step {self._ahead_step} was asked for when only {self.step} had been trained. Train with "
                "model.fit(elastic.data(...), callbacks=[elastic]) and steps_per_execution=1."
            )
        step = self._next_step()
        if step is None:
            return False
        self._to_read.append(step)
        self._to_train.append(step)
        return True

    def _next_step(self) -> Step | None:
        self._learn(self._ahead_step - LAG)
        ahead = self._ahead
        while True:
            seen = self._observe()
            if is_finished(self.policy, seen):
                self.finished = True
                return None
            batch, micro = self._choose(seen)
            if batch > ahead.length:
                raise DataError(
                    f"a global batch of {batch} was chosen, but the data has only {ahead.length} samples an epoch. "
                    f"Lower the batch (or the policy's maximum) to {ahead.length} or less."
                )
            span = ahead.next_span(batch)
            if span is not None or not self._fresh:
                break
            ahead.next_epoch()  # what is left of this one was dropped before this reader began
        self._fresh = False
        if span is None:
            return None
        step = self._decide(batch, micro, span, seen)
        ahead.commit(span[1])
        if batch != self._ahead_batch:
            self._ahead_batch, self._ahead_since = batch, ahead.samples - (span[1] - span[0])
        self._ahead_micro, self._trained_on = micro, seen.replicas
        self._ahead_step += 1
        self._ahead_progress += step.gain
        return step

    def _observe(self) -> Observation:
        ahead, replicas = self._ahead, self.replicas * self.devices
        return Observation(
            step=self._ahead_step,
            samples=ahead.samples,
            epoch=ahead.epoch,
            epoch_samples=ahead.cursor,
            epoch_size=ahead.length,
            total_samples=self.total_samples,
            progress=self._ahead_progress,
            base_batch=self.base,
            batch=self._ahead_batch,
            batch_since=self._ahead_since,
            replicas=replicas,
            noise=self.noise,
            times=self._times,
            resized=self._trained_on not in (None, replicas),
            feasible=_fits(self._ahead_batch, self.replicas, (self._ahead_micro or self._micro) * self.devices),
            micro_batch=self._ahead_micro,
            max_micro=self._bound,
            profile=self.profile.summaries(),
        )

    def _choose(self, seen: Observation) -> tuple[int, int]:
        """The global batch, and the most samples one device computes at once."""
        layout = chosen_layout(self.policy, seen)
        if layout is None:
            return checked_batch(self.policy, seen), self._micro
        return layout.global_batch, layout.micro_batch if self._bound is None else min(self._bound, layout.micro_batch)

    def _decide(self, batch: int, micro: int, span: tuple[int, int], seen: Observation) -> Step:
        count = span[1] - span[0]
        made = self._lay_out(batch, count, micro * self.devices)
        mine = passes(made.shares[self.rank], devices=self.devices)
        scale = count / self.base
        state = ScaleState(
            scale=scale,
            base_batch=self.base,
            moments=_total(self.noise_average),
            preconditioned=_total(self.metric_average),
            progress=self._ahead_progress,
            samples=self._ahead.samples,
        )
        factors = self.rule.factors(state)
        measured = self._every is not None and self._ahead_step % self._every == 0
        return Step(
            index=self._ahead_step,
            epoch=self._ahead.epoch,
            start=span[0],
            stop=span[1],
            batch=batch,
            plan=made,
            passes=mine,
            factors=factors,
            gain=self.rule.gain(state),
            measured=measured and self._number(made) > 1,
            preconditioned=self._preconditioned and self.iterations + self._ahead_step >= WARM_UP_STEPS,
            effective_step=self._count_powers(factors.beta_power),
            micro=micro,
            seen=None if batch == self._ahead_batch else seen,
        )

    def _lay_out(self, batch: int, count: int, largest: int) -> Plan:
        made = _laid_out(count, self.replicas, largest, count == batch)
        due = self._every is not None and self._ahead_step % max(self._every, SPLIT_EVERY) == 0
        if due and self._number(made) == 1 and count >= 2 * self.devices:
            half = -(-count // (2 * self.devices)) * self.devices
            made = _laid_out(count, self.replicas, half, False)
        return made

    def _number(self, made: Plan) -> int:
        """How many small batches the step is measured by: the passes of all processes."""
        return sum(len(passes(share, devices=self.devices)) for share in made.shares if share)

    def _count_powers(self, power: float) -> float:
        if self._ahead_powers is None:
            if power == 1:
                return float(self.iterations + self._ahead_step + 1)
            self._ahead_powers = float(self.iterations + self._ahead_step)
        self._ahead_powers += power
        return effective_step(self._ahead_powers, power)

    # What was trained

    def commit(self, step: Step, read: Callable[[], tuple[list[float], list[float]]], *, step_s: float) -> None:
        """Count a step as done; ``read`` gives its figures later: small and whole squared norms, plain and metric."""
        ledger = self.ledger
        if step.epoch != ledger.epoch:
            ledger.next_epoch()
        span = ledger.next_span(step.stop - step.start)
        assert span == (step.start, step.stop), f"trained {step.start} to {step.stop} where {span} was due"
        if step.batch != self.batch:
            self.batch, self.batch_since = step.batch, ledger.samples
        self.micro = step.micro
        ledger.commit(step.stop)
        self.step += 1
        self.progress += step.gain
        if step.factors.beta_power != 1 or self.power_sum is not None:
            before = float(self.iterations + self.step - 1) if self.power_sum is None else self.power_sum
            self.power_sum = before + step.factors.beta_power
        if step.measured:
            passed = ledger.samples - self._measured_at
            self._measured_at = ledger.samples
            self._waiting.append((step, passed, read))
        self._times = StepTimes(
            replicas=self.replicas * self.devices,
            nodes=1,
            micro_batch=-(-step.plan.micro_batch // self.devices),
            accumulation=step.plan.accumulation,
            step_s=step_s,
        )
        if step.stop - step.start == step.batch:
            self.profile.add(self._times)

    def _learn(self, until: int) -> None:
        """Take the figures of every committed step up to ``until`` into the averages, in order."""
        while self._waiting and self._waiting[0][0].index <= until:
            step, passed, read = self._waiting.popleft()
            small, big = read()
            count, batch = self._number(step.plan), step.stop - step.start
            self.noise_average.update([(small[0], big[0])], count=count, batch=batch, samples_between=passed)
            if step.preconditioned and big[1] > 0:
                self.metric_average.update([(small[1], big[1])], count=count, batch=batch, samples_between=passed)

    def drain(self) -> None:
        """Take in every figure there is."""
        self._learn(self.step)

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Counts and moments, as plain numbers; the same on every process."""
        self.drain()
        return {
            "ledger": self.ledger.state_dict(),
            "step": self.step,
            "progress": self.progress,
            "batch": self.batch,
            "batch_since": self.batch_since,
            "micro": self.micro,
            "replicas": self.replicas * self.devices,
            "iterations": self.iterations,
            "power_sum": self.power_sum,
            "measured_at": self._measured_at,
            "noise": self.noise_average.state_dict(),
            "metric": self.metric_average.state_dict(),
            "profile": self.profile.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state, on any number of devices."""
        self.ledger.load_state_dict(state["ledger"])
        self.noise_average.load_state_dict(state["noise"])
        self.metric_average.load_state_dict(state["metric"])
        self.profile.load_state_dict(state["profile"])
        self.step, self.progress = int(state["step"]), float(state["progress"])
        self.batch, self.batch_since = int(state["batch"]), int(state["batch_since"])
        self.micro, self._trained_on = state["micro"], state["replicas"]
        self.iterations, self._measured_at = int(state["iterations"]), int(state["measured_at"])
        self.power_sum = None if state["power_sum"] is None else float(state["power_sum"])
        self._waiting.clear()
        self.restart()


@lru_cache(maxsize=64)  # mostly as for the step before
def _laid_out(count: int, replicas: int, largest: int, whole: bool) -> Plan:
    if whole:
        plan(count, replicas, max_micro=largest)  # refuses what cannot be laid out, and says what can
    return plan_remainder(count, replicas, max_micro=largest, constant_micro=True)


@lru_cache(maxsize=64)
def _fits(batch: int, replicas: int, largest: int) -> bool:
    try:
        plan(batch, replicas, max_micro=largest)
    except PlanError:
        return False
    return True


def _total(average: MomentAverage) -> Any:
    found = average.estimate()
    return None if found is None else found.total
