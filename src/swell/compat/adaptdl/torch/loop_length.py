"""The length of a training loop: the batches so far, and those to come if the global batch stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from swell.compat.adaptdl.session import Session
from swell.core.base_steps import base_steps, base_steps_of_epoch
from swell.core.planning import plan_remainder
from swell.core.protocols import Policy
from swell.core.types import Plan
from swell.job import Job
from swell.loop.statistics import Statistics
from swell.policies.decision import follows_noise

_LEAST_GAIN = 1e-3  # of a whole step, so that a rule that sees no progress does not make the forecast endless


@dataclass(slots=True)
class Tally:
    """The batches of a loader's training loops on this replica."""

    batches: int = 0  # of the loop under way, or of the latest one
    under_way: bool = False
    last_epoch: int | None = None  # the epoch in which the latest loop came to its end
    total: int = 0  # the latest forecast
    basis: tuple[Any, ...] | None = None  # what that forecast depends on

    def begin(self) -> None:
        """A loop begins."""
        self.batches, self.under_way, self.last_epoch, self.basis = 0, True, None, None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The steps to come if nothing changes; functions take the number of samples in a step, or its number."""

    length: int  # samples of a pass
    drop_last: bool
    batch: int  # at most a pass
    lay_out: Callable[[int], Plan]
    rank: int
    base: int
    gain: Callable[[float], float]  # of a step, by the number of base steps in its samples
    splits: Callable[[int], bool]  # whether a step of one batch is split in two to be measured

    def ahead(self, *, position: int, progress: float, step: int, target: float | None) -> int:
        """Batches of this replica to the end of the pass; with a target, pass after pass until it is reached."""
        plan, whole = self.lay_out(self.batch), self.batch / self.base
        gain_of_whole = max(self.gain(whole), _LEAST_GAIN)
        share, splittable = len(plan.shares[self.rank]), plan.num_micro_batches == 1 and self.batch > 1
        batches = 0
        while target is None or progress < target * (1 - 1e-9):
            rest = self.length - position
            if rest >= self.batch:
                batches += share + (splittable and self.splits(step))
                worth = self._base_steps(position, position + self.batch)
                gain = gain_of_whole if worth == whole else max(self.gain(worth), _LEAST_GAIN)
                position, progress, step = position + self.batch, progress + gain, step + 1
            elif rest and not self.drop_last:
                batches += len(self.lay_out(rest).shares[self.rank])  # the short last step of a pass is never split
                gain = self.gain(self._base_steps(position, self.length))
                position, progress, step = self.length, progress + gain, step + 1
            elif target is None:
                break
            else:
                position = 0
        return batches

    def _base_steps(self, start: int, stop: int) -> float:
        return base_steps(start, stop, base=self.base, length=self.length, drop_last=self.drop_last)


def target_of(session: Session, job: Job) -> float:
    """The progress at which the next autoscaled loop ends, in base steps."""
    epoch = job.engine.state.ledger.base_steps_of_epoch(job.engine.state.pace.base)
    return (session.place.epoch + 1) * epoch if session.place.in_epoch else job.progress + epoch


def batches_of_loop(session: Session, tally: Tally, job: Job, *, autoscaled: bool, drop_last: bool) -> int:
    """Batches of the loop under way; outside one, of the loop that this epoch has finished, or of the next."""
    place, engine, state = session.place, job.engine, job.engine.state
    if not tally.under_way and place.in_epoch and tally.last_epoch == place.epoch:
        return tally.batches
    pace, forecast = state.pace, _forecast(job, drop_last=drop_last)
    loop = () if tally.under_way else (state.samples, place.epoch, place.in_epoch)
    layout = (forecast.batch, pace.micro, pace.max_micro, job.replicas, job.rank)
    basis = (*loop, *layout, engine.planner.awaits_noise, round(forecast.gain(forecast.batch / forecast.base), 2))
    if basis != tally.basis:  # scripts ask at every batch, and a forecast goes through all the steps of an epoch
        batches, position, target = 0, state.ledger.cursor, engine.horizon.target
        if tally.under_way:  # count batches of committed steps, because the forecast includes the step under way
            step = engine.steps.current
            batches = tally.batches - (0 if step is None or step.ended else step.index + 1)
        elif autoscaled:
            target = target_of(session, job)
        elif place.early_exit not in (None, place.epoch):
            position = 0  # the latest loop was left early, in an earlier epoch
        ahead = forecast.ahead(position=position, progress=pace.progress, step=pace.step, target=target)
        tally.total, tally.basis = batches + ahead, basis
    return max(tally.total, tally.batches) if tally.under_way else tally.total


def batches_of_first_loop(session: Session, policy: Policy, *, length: int, drop_last: bool) -> int:
    """Batches of an autoscaled epoch before there is a job: at the base batch, with nothing measured yet."""
    statistics, awaited = Statistics(), follows_noise(policy)
    forecast = Forecast(
        length=length,
        drop_last=drop_last,
        batch=min(policy.base, length),
        lay_out=lambda count: plan_remainder(count, session.collective.size),
        rank=session.collective.rank,
        base=policy.base,
        gain=lambda worth: min(1.0, worth),
        splits=lambda step: statistics.splits(step, awaited=awaited),
    )
    return forecast.ahead(
        position=0, progress=0.0, step=0, target=base_steps_of_epoch(length, base=policy.base, drop_last=drop_last)
    )


def _forecast(job: Job, *, drop_last: bool) -> Forecast:
    state, planner, steps = job.engine.state, job.engine.planner, job.engine.steps
    pace, learner, statistics, awaited = state.pace, state.learners[0], planner.statistics, planner.awaits_noise
    batch = steps.chosen.batch if steps.under_way and steps.chosen is not None else pace.batch
    scale, window = batch / pace.base, learner.noise.window

    def gain(worth: float) -> float:
        _, total = learner.states(scale=worth, progress=pace.progress, samples=state.samples)
        return learner.rule.gain(total)

    return Forecast(
        length=state.ledger.length,
        drop_last=drop_last,
        batch=min(batch, state.ledger.length),
        lay_out=lambda count: pace.lay_out(batch, count, replicas=job.replicas, split=False),
        rank=job.rank,
        base=pace.base,
        gain=gain,
        splits=lambda step: statistics is not None and statistics.splits(step, scale, window, awaited=awaited),
    )
