"""What the next step is: its batch, its samples and its layout, and whether it is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from swell.core.counts import whole_number
from swell.core.goodput import Outlook
from swell.core.moment_average import window_of
from swell.core.protocols import FinitePolicy
from swell.core.types import Observation, Plan
from swell.data.span import Span
from swell.errors import ConfigError, DataError
from swell.job.horizon import Horizon
from swell.job.peers import Peers
from swell.job.run_state import RunState
from swell.loop.measuring_budget import shape_of
from swell.loop.statistics import Statistics
from swell.policies import find
from swell.policies.decision import awaiting, predicted_outlook, require_noise

# The budget of measuring needs the usual time of a step: the first 64 are timed, and after them one in 4.
_TIMED_ALL, _TIMED = 64, 4


class Chosen(NamedTuple):
    """A step as it was chosen, before anything is computed."""

    epoch: int
    start: int  # the position of its first sample in the epoch
    batch: int  # what the policy chose, whole even where the end of the epoch cuts the step short
    base_steps: float  # what it is worth by its samples: 1 at the base batch, for the short step of an epoch too
    plan: Plan
    measured: bool  # whether its gradients are measured
    split: bool  # whether it was cut in two only to be measured
    budgeted: bool  # whether its time counts for the budget of measuring
    timed: bool  # whether its own time counts for something, and not only the sum of many
    observation: Observation | None  # what the policy chose by


class Planner:
    """Chooses one step after another; knows where this replica is in its pass over the data.

    Every replica has the same state, so every replica chooses the same steps without asking the others. ``measures``
    says whether the next step may be measured.
    """

    def __init__(
        self,
        state: RunState,
        peers: Peers,
        horizon: Horizon,
        statistics: Statistics | None,
        *,
        measures: Callable[[], bool] = lambda: True,
    ) -> None:
        self._state, self._peers, self._horizon, self._statistics = state, peers, horizon, statistics
        self._measures = measures
        policy = state.pace.policy
        self._finite, self._awaits = find(policy, FinitePolicy), awaiting(policy)  # asked once: the checks are slow
        require_noise(policy, measured=statistics is not None)
        self._measuring: Statistics | None = None  # in the pass under way
        self._used = True  # whether anything depends on the figures
        self._observation: Observation | None = None  # the latest
        self._epoch = 0  # of the pass under way
        self.passes = 0  # how often the user began to iterate the loader
        self._passes_before = 0  # the same when the turn of the outer loop began
        self.in_turn = False  # whether the user is in the body of the outer loop
        self.finished = False  # whether the policy says that the run is over
        self.complete = False  # whether the epoch's last sample was committed
        self._ended = False  # whether the pass under way has no more steps, for whatever reason

    @property
    def statistics(self) -> Statistics | None:
        """Which steps are measured; None where none is."""
        return None if self.unmeasured else self._statistics

    @property
    def unmeasured(self) -> bool:
        """Whether nothing is measured because nobody uses the figures, and not because the script says so."""
        return self._statistics is not None and self._statistics.on_demand and not self._is_used()

    def _is_used(self) -> bool:
        """Whether anything depends on the figures: other batches than the base batch, or a rule that asks for them."""
        learners = self._state.learners
        return not self._state.pace.always_base or any([each.may_use_moments_at_base for each in learners])

    def begin_pass(self) -> None:
        """The user began to iterate the loader."""
        self.complete, self._ended = False, False
        self._measuring, self._used = self.statistics, self._is_used()
        self.passes += 1
        self._epoch = self._state.ledger.epoch

    def begin_turn(self) -> None:
        """The body of the outer loop begins."""
        self.in_turn = True
        self._passes_before = self.passes

    def end_turn(self) -> None:
        """The body of the outer loop is done."""
        self.in_turn = False

    @property
    def before_pass(self) -> bool:
        """Whether the user has not yet begun to iterate the loader in this turn of the outer loop."""
        return self.passes == self._passes_before

    @property
    def in_pass(self) -> bool:
        """Whether the pass under way is over the run's epoch; not where other replicas have finished that epoch."""
        return self._epoch == self._state.ledger.epoch

    @property
    def through(self) -> bool:
        """Whether every sample of the run's epoch was used."""
        return self.complete and self.in_pass

    @property
    def pass_done(self) -> bool:
        """Whether the pass over the run's epoch has no more steps: its samples were used, or the run is long enough."""
        return self._ended and self.in_pass

    def next(self) -> Chosen | None:
        """The next step; None at the end of the epoch or of the run."""
        chosen = self._next()
        self._ended = chosen is None
        return chosen

    def _next(self) -> Chosen | None:
        data, pace = self._state.data, self._state.pace
        ledger = data.ledger
        epoch = ledger.epoch
        if epoch != self._epoch:  # while this replica was cut off, others have finished the pass
            return None
        if self._horizon.reached(pace.progress):
            return None
        settled = pace.settled  # a batch that never changes needs no observation
        batch = pace.batch if settled else self._batch()
        if batch is None:
            return None
        if batch > ledger.length:
            raise DataError(
                f"the global batch is {batch}; expected at most the {ledger.length} samples of an epoch. Lower the "
                f"batch (or the policy's maximum) to {ledger.length} or less."
            )
        span = data.next_span(batch, peers=self._peers, lay_out=lambda: self._lay_out(batch, batch))
        if span is None:
            self.complete = True
            return None
        start, stop = span
        plan, measured, split = self._measured_layout(batch, stop - start)
        budgeted = self._measuring is not None or not settled
        return Chosen(
            epoch=epoch,
            start=start,
            batch=batch,
            base_steps=data.base_steps(start, stop, batch=batch, base=pace.base),
            plan=plan,
            measured=measured,
            split=split,
            budgeted=budgeted,
            timed=measured or not settled or (budgeted and (pace.step < _TIMED_ALL or pace.step % _TIMED == 0)),
            observation=self._observation,
        )

    def _batch(self) -> int | None:
        """The next global batch; None where the policy says that the run is over."""
        pace, marks = self._state.pace, self._state.marks
        if marks.stepped:  # some optimizers have made this step already
            return marks.stepped_batch
        observation = self._observation = self.observe()
        self.finished = self._finite is not None and bool(self._finite.finished(observation))
        return None if self.finished else pace.choose(observation)

    def observe(self) -> Observation:
        """Everything that the policy may look at before the next step."""
        state, data = self._state, self._state.data
        ledger, epoch_size = data.ledger, data.epoch_size
        return state.pace.observe(
            replicas=self._peers.size,
            nodes=self._peers.nodes,
            noise=state.noise,
            samples=ledger.samples,
            epoch=ledger.epoch,
            epoch_samples=ledger.cursor,
            epoch_size=epoch_size,
            total_samples=self._horizon.total_samples(base_batch=state.pace.base, epoch_size=epoch_size),
            total_progress=self._horizon.target,
            lr_height=next((one.schedule.height for one in state.learners if one.schedule is not None), 1.0),
            ceiling=state.growth.limit(ledger.samples, self._peers.size) if state.pace.follows_noise else None,
            worth_power=state.learners[0].worth_power if state.learners else 1.0,
        )

    def _measured_layout(self, batch: int, count: int) -> tuple[Plan, bool, bool]:
        """The step's plan, whether it is measured, and whether it was split for that."""
        plan, pace, statistics = self._lay_out(batch, count), self._state.pace, self._measuring
        if statistics is None or not self._measures():
            return plan, False, False
        scale, window = batch / pace.base, self._state.learners[0].noise.window
        awaited, followed = self.awaits_noise, pace.follows_noise
        if plan.accumulation > 1 or (plan.num_micro_batches > 1 and not self._needs_pairs(plan)):
            due = statistics.measures(pace.step, scale, window, awaited=awaited)
            return plan, due and self._affordable(plan, statistics.share(split=False, followed=followed)), False
        # What is left at the end of an epoch may be too little to cut: batch norm refuses a single sample.
        split = count == batch and count > 1 and statistics.splits(pace.step, scale, window, awaited=awaited)
        split = split and self._affordable(plan, statistics.share(split=True, followed=followed))
        return self._lay_out(batch, count, split=True) if split else plan, split, split

    def _needs_pairs(self, plan: Plan) -> bool:
        """Whether each replica is to compare two gradients of its own, as in a dual norm, and can."""
        return plan.micro_batch > 1 and any([learner.by_dual_norm for learner in self._state.learners])

    def _affordable(self, plan: Plan, share: float | None) -> bool:
        """Whether measuring a step of this plan costs no more than its share of the time."""
        return share is None or self._state.measuring.allows(shape_of(plan), share=share, needed=self._used)

    def _lay_out(self, batch: int, count: int, *, split: bool = False) -> Plan:
        return self._state.pace.lay_out(batch, count, replicas=self._peers.size, split=split)

    @property
    def awaits_noise(self) -> bool:
        """Whether the policy waits for a surer noise estimate."""
        return self._awaits(self._state.noise)

    def set_window(self) -> None:
        """Average figures over a part of the run that suits its length."""
        base, size = self._state.pace.base, self._state.data.epoch_size
        window = None if self.statistics is None else self.statistics.window
        if window is None:
            total = self._horizon.total_samples(base_batch=base, epoch_size=size)
            window = window_of(total, base_batch=base)
        for learner in self._state.learners:
            learner.noise.window = window

    # What would come if nothing changed

    def plan(self, count: int | None = None) -> Plan:
        """The layout of a step of ``count`` samples, or of a whole one, at the present batch."""
        batch = self._state.pace.batch
        return self._lay_out(batch, batch if count is None else count)

    def spans_from(self, position: int, plan: Plan) -> Iterator[Span]:
        """This replica's micro-batches from a position to the end of the epoch, if the plan stays as it is."""
        data, rank, size = self._state.data, self._peers.rank, plan.global_batch
        epoch, length = data.ledger.epoch, data.ledger.length
        while position < length:
            if position + size > length:
                if data.drop_last:
                    return
                plan = self.plan(length - position)
            for micro in plan.shares[rank]:
                yield Span(epoch, position + micro.offset, position + micro.offset + micro.size)
            position += size

    def outlook(self, replicas: int | Iterable[int]) -> dict[int, Outlook]:
        """What the policy expects on other numbers of replicas, relative to now."""
        counts = replicas if isinstance(replicas, Iterable) else (replicas,)
        if isinstance(counts, str):
            raise ConfigError(f"replicas is {replicas!r}; expected a number. Give one, or several, as [1, 2, 4].")
        sizes = [whole_number(count, name="replicas") for count in counts]
        return predicted_outlook(self._state.pace.policy, self.observe(), sizes)
